//! Tests of the demo origin and the load generators over real sockets.

mod load;
mod origin;
