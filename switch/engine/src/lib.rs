//! v1model from BMv2 JSON, compiled when loaded.
