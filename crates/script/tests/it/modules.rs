//! Files, arguments, paths and C modules.

use std::ffi::CString;
use std::process::Command;

use sluicegate_script::ErrorKind;

use crate::support::{run, set_global, state};

fn c(text: &str) -> CString {
    CString::new(text).expect("no zero byte")
}

#[test]
fn a_file_gets_its_arguments() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("body.lua");
    std::fs::write(&file, "#!/usr/bin/lua\nlocal a, b = ...\ngot = a .. b .. select('#', ...)\n").expect("written");
    let mut state = state(0);
    state.run_file(&c(file.to_str().unwrap()), &[c("one"), c("two")]).expect("runs");
    assert_eq!(run(&mut state, "return got").as_deref(), Ok("onetwo2"));
}

#[test]
fn load_errors_say_what_and_where() {
    let mut state = state(0);
    let error = state.run_file(c"/nonexistent/x.lua", &[]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::File);
    assert!(error.message.starts_with("cannot open /nonexistent/x.lua"), "{error}");
    let error = state.run_chunk(b"x = = 1", c"@bad.lua", &[]).unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Syntax, "bad.lua:1: unexpected symbol near '='"));
    let error = state.run_chunk(b"\nlocal function f() error('x') end f()", c"@bad.lua", &[]).unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Runtime, "bad.lua:2: x"));
    assert!(error.trace.contains("bad.lua:2: in main chunk"), "{}", error.trace);
    let error = state.run_chunk(b"ask(1)", c"=body", &[]).unwrap_err();
    assert!(error.message.contains("attempt to yield"), "{error}");
}

#[test]
fn prepended_paths_come_first() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("mine.lua"), "return {name = 'mine'}").expect("written");
    let mut state = state(0);
    state.prepend_path("/nowhere/?.lua", false).expect("set");
    state.prepend_path(&format!("{}/?.lua", dir.path().display()), false).expect("set");
    assert_eq!(run(&mut state, "return require('mine').name").as_deref(), Ok("mine"));
    assert_eq!(run(&mut state, "return package.path:find(';/nowhere/?.lua;', 1, true) ~= nil").as_deref(), Ok("true"));
}

/// A module in C, with the declarations it needs written out so that no header has to be installed.
const MODULE: &str = r#"
typedef struct lua_State lua_State;
extern long long luaL_checkinteger(lua_State *, int);
extern void lua_pushinteger(lua_State *, long long);
extern void lua_createtable(lua_State *, int, int);
extern void lua_pushcclosure(lua_State *, int (*)(lua_State *), int);
extern void lua_setfield(lua_State *, int, const char *);
/* Used by nobody else in the program: proves that the whole API is exported. */
extern void lua_arith(lua_State *, int);
static int twice(lua_State *L) { lua_pushinteger(L, 2); lua_arith(L, 2); return 1; }
int luaopen_twice(lua_State *L) {
    lua_createtable(L, 0, 1);
    lua_pushcclosure(L, twice, 0);
    lua_setfield(L, -2, "twice");
    return 1;
}
"#;

#[test]
fn c_modules_load() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("twice.c");
    std::fs::write(&source, MODULE).expect("written");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(dir.path().join("twice.so"))
        .arg(&source)
        .status()
        .expect("a C compiler, which Lua itself needs too");
    assert!(compiled.success());
    let mut state = state(0);
    set_global(&mut state, c"unused", "");
    state.prepend_path(&format!("{}/?.so", dir.path().display()), true).expect("set");
    assert_eq!(run(&mut state, "return require('twice').twice(21)").as_deref(), Ok("42"));
}
