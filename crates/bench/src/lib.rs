//! Load generators and the demo origin server.
