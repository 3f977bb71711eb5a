//! Real traffic over pools.
