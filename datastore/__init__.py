"""What the picker knows: models, pools, endpoints and their load, kept current by sources.

The core (`model`, `events`, `store`, `decode`, `exposition`) is pure: values in, values out.
The shells (`files`, `watch`, `kube`, `scrape`) bring news from the world and feed it in.
"""
