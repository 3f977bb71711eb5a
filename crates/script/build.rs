//! C modules that a script loads find Lua's API in the program itself, so the tests export it as the binary does.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for symbols in ["lua_*", "luaL_*", "luaopen_*"] {
        println!("cargo:rustc-link-arg-tests=-Wl,--export-dynamic-symbol={symbols}");
    }
}
