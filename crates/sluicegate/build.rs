//! Lua's symbols stay visible in the program, so that C modules of scripts (`package.cpath`) find them.

fn main() {
    for symbols in ["lua_*", "luaL_*", "luaopen_*"] {
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol={symbols}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
