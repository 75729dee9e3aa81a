//! The preload shim that puts ordinary sockets on the Rivulet client.
