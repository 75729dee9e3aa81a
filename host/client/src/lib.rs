//! The client library: a stack thread with blocking and async faces.
