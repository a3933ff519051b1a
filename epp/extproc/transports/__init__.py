"""The only sockets of the request path: gRPC over our own HTTP/2, or over grpcio."""
