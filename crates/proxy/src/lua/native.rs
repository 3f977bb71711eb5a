//! The functions below `prelude.lua`: queries of its plain-table objects about the running process.
//!
//! Objects identify proxies by their index in the configuration, and servers, which are added and deleted at run time,
//! by their lifetime number. Both are looked up at each call, so a forged table is harmless. An object that does not
//! exist at that moment (no snapshot yet, a deleted server) yields nil.

use std::ffi::{CStr, c_int};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sluicegate_config::model::{self, Mode, ProxyKind, ServerAddress};
use sluicegate_script::ffi::{self, lua_CFunction, lua_KContext, lua_State};
use sluicegate_script::{State, check_bytes, continuation, function, push_bytes, raise};
use tokio::sync::Notify;

use super::host::{Phase, Value, check_object, host, key, push_text, set_functions, wait_for};
use super::operation::{Operation, Outcome};
use super::{events, httpclient, patterns, redis, redis_own, socket, table};
use crate::frontend::Gate;
use crate::listener::{self, numbered};
use crate::process::Process;
use crate::running::{ProxyRun, Running};
use crate::server::{Admin, Directive, HealthWord, ServerRun, parse_weight};
use crate::stats::columns::{self, Cell, Row};
use crate::stats::{Object, info};
use crate::stream::{Killer, Which};

const PRELUDE: &str = include_str!("prelude.lua");

/// Runs the prelude, and stores its functions that publish proxies and dispatch events.
pub(super) unsafe fn open(lua: *mut lua_State) {
    const NATIVE: [(&CStr, lua_CFunction); 20] = [
        (c"stats", function!(stats)),
        (c"server_stats", function!(server_stats)),
        (c"servers", function!(servers)),
        (c"trackers", function!(trackers)),
        (c"shut_server", function!(shut_server)),
        (c"server", function!(server)),
        (c"tracking", function!(tracking)),
        (c"set_server", function!(set_server)),
        (c"proxy", function!(proxy)),
        (c"mailers", function!(mailers)),
        (c"shut", function!(shut)),
        (c"gate", function!(gate)),
        (c"bell", function!(bell)),
        (c"wake", function!(wake)),
        (c"listen", function!(listen)),
        (c"socket", function!(socket::luasocket)),
        (c"gettime", function!(gettime)),
        (c"sleep", function!(sleep)),
        (c"toip", function!(toip)),
        (c"hostname", function!(hostname)),
    ];
    const CORE: [(&CStr, lua_CFunction); 5] = [
        (c"get_info", function!(get_info)),
        (c"disable_legacy_mailers", function!(disable_legacy_mailers)),
        (c"get_var", function!(get_var)),
        (c"parse_addr", function!(parse_addr)),
        (c"match_addr", function!(match_addr)),
    ];
    // SAFETY: called inside a protected call; nothing is held.
    unsafe {
        ffi::lua_getglobal(lua, c"core".as_ptr());
        set_functions(lua, &CORE);
        ffi::lua_settop(lua, -2);
        ffi::lua_createtable(lua, 0, 1); // the metatable of bells
        set_functions(lua, &[(c"__gc", function!(collect_bell))]);
        ffi::lua_rawsetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::BELL).cast());
        let status =
            ffi::luaL_loadbufferx(lua, PRELUDE.as_ptr().cast(), PRELUDE.len(), c"=prelude".as_ptr(), c"t".as_ptr());
        if status != ffi::LUA_OK {
            ffi::lua_error(lua);
        }
        ffi::lua_createtable(lua, 0, NATIVE.len() as c_int);
        set_functions(lua, &NATIVE);
        table::set_native(lua);
        patterns::set_native(lua);
        httpclient::set_native(lua);
        redis::set_native(lua);
        redis_own::set_native(lua);
        events::set_native(lua);
        ffi::lua_call(lua, 1, 2);
        ffi::lua_rawsetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::DISPATCH).cast());
        ffi::lua_rawsetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::PUBLISH).cast());
    }
}

/// Creates `core.proxies`, `core.frontends` and `core.backends` in a state.
pub(super) fn publish(state: &mut State, running: &Running) -> Result<(), String> {
    // SAFETY: the values alive across Lua's calls are borrowed from `running` and have no destructor.
    unsafe {
        state
            .protect(|lua| {
                ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::PUBLISH).cast());
                ffi::lua_createtable(lua, running.proxies.len() as c_int, 0);
                for (index, proxy) in running.proxies.iter().enumerate() {
                    push_proxy(lua, index, proxy);
                    ffi::lua_rawseti(lua, -2, index as i64 + 1);
                }
                ffi::lua_call(lua, 1, 0);
            })
            .map_err(|error| error.to_string())
    }
}

unsafe fn push_proxy(lua: *mut lua_State, index: usize, proxy: &ProxyRun) {
    // SAFETY: as `publish`.
    unsafe {
        ffi::luaL_checkstack(lua, 8, c"out of stack".as_ptr());
        let config = &proxy.config;
        ffi::lua_createtable(lua, 1, 8);
        ffi::lua_pushinteger(lua, index as i64);
        ffi::lua_rawseti(lua, -2, 1);
        push_bytes(lua, config.name.as_bytes());
        ffi::lua_setfield(lua, -2, c"name".as_ptr());
        push_text(lua, config.uid.to_string().into_bytes());
        ffi::lua_setfield(lua, -2, c"uuid".as_ptr());
        for (name, has) in
            [(c"front", config.kind != ProxyKind::Backend), (c"back", config.kind != ProxyKind::Frontend)]
        {
            ffi::lua_pushboolean(lua, c_int::from(has));
            ffi::lua_setfield(lua, -2, name.as_ptr());
        }
        push_listeners(lua, index, config);
        ffi::lua_setfield(lua, -2, c"listeners".as_ptr());
        if let Some(table) = &config.stick_table {
            ffi::lua_createtable(lua, 1, 0);
            push_bytes(lua, table.name.as_bytes());
            ffi::lua_rawseti(lua, -2, 1);
            ffi::lua_setfield(lua, -2, c"stktable".as_ptr());
        }
    }
}

/// Pushes the listeners: one per address, by the name of its `bind`, or numbered.
unsafe fn push_listeners(lua: *mut lua_State, index: usize, config: &model::Proxy) {
    // SAFETY: as `publish`.
    unsafe {
        ffi::lua_createtable(lua, 0, config.binds.len() as c_int);
        // The list is parked where no error of Lua's leaks it.
        host(lua).sockets = numbered(&config.binds).into_iter().map(|(bind, _, id)| (bind, id)).collect();
        for place in 0..host(lua).sockets.len() {
            let (bind, id) = host(lua).sockets[place];
            push_text(lua, listener::name(&config.binds[bind], id).into_owned().into_bytes());
            ffi::lua_createtable(lua, 2, 0);
            for (slot, value) in [(1, index), (2, place)] {
                ffi::lua_pushinteger(lua, value as i64);
                ffi::lua_rawseti(lua, -2, slot);
            }
            ffi::lua_rawset(lua, -3);
        }
    }
}

/// Returns the running snapshot; `None` before there is one.
pub(super) unsafe fn running(lua: *mut lua_State) -> Option<Arc<Running>> {
    // SAFETY: a C function's usual stack.
    unsafe { host(lua).shared.running.read().upgrade() }
}

/// Runs `f` on the proxy that argument 1 names. `f` must not call Lua.
unsafe fn with_proxy<T>(lua: *mut lua_State, f: impl FnOnce(&Arc<Running>, &ProxyRun) -> T) -> Option<T> {
    // SAFETY: the snapshot is let go before anything of Lua's is called again.
    unsafe {
        let index = ffi::luaL_checkinteger(lua, 1);
        let running = running(lua)?;
        let proxy = usize::try_from(index).ok().and_then(|index| running.proxies.get(index))?;
        Some(f(&running, proxy))
    }
}

/// Like [`with_proxy`], for the server whose object is argument 1. The object contains the proxy's index, the server's
/// index when the object was created, and its life. Returns `None` once the server was deleted.
unsafe fn with_server<T>(lua: *mut lua_State, f: impl FnOnce(&Arc<Running>, &ProxyRun, &ServerRun) -> T) -> Option<T> {
    // SAFETY: as `with_proxy`; raw reads of a table raise nothing.
    unsafe {
        ffi::luaL_checktype(lua, 1, ffi::LUA_TTABLE);
        let [proxy, place, life] = [1, 2, 3].map(|slot| {
            ffi::lua_rawgeti(lua, 1, slot);
            let number = ffi::lua_tointegerx(lua, -1, std::ptr::null_mut());
            ffi::lua_settop(lua, -2);
            number
        });
        let running = running(lua)?;
        let proxy = usize::try_from(proxy).ok().and_then(|index| running.proxies.get(index))?;
        let is_it = |server: &&Arc<ServerRun>| server.shared.life == life as u64;
        // Servers before it may have been deleted.
        let first = usize::try_from(place).ok().and_then(|place| proxy.servers.get(place)).filter(is_it);
        let server = first.or_else(|| proxy.servers.iter().find(is_it))?;
        Some(f(&running, proxy, server))
    }
}

/// The data of a server that is to be passed to a script.
pub(super) struct Named {
    proxy: usize,
    place: usize,
    life: u64,
    sid: u32,
    name: Arc<str>,
}

impl Named {
    fn of(proxy: &ProxyRun, server: &ServerRun) -> Named {
        let (place, life) = (server.shared.index, server.shared.life);
        Named { proxy: proxy.id.0 as usize, place, life, sid: server.config.sid, name: server.name().clone() }
    }
}

/// Pushes an array of the data from which server objects are made.
unsafe fn push_servers(lua: *mut lua_State, servers: Vec<Named>) -> c_int {
    // SAFETY: the list is parked in the host before Lua is called, and each name is copied there for its push.
    unsafe {
        let count = servers.len();
        host(lua).servers = servers;
        ffi::lua_createtable(lua, count as c_int, 0);
        for index in 0..count {
            let Some(&Named { proxy, place, life, .. }) = host(lua).servers.get(index) else { break };
            let numbers = [(1, proxy as i64), (2, place as i64), (3, life as i64)];
            ffi::lua_createtable(lua, 3, 2);
            for (slot, value) in numbers {
                ffi::lua_pushinteger(lua, value);
                ffi::lua_rawseti(lua, -2, slot);
            }
            for (field, of) in [
                (c"name", (|named| named.name.as_bytes().to_vec()) as fn(&Named) -> Vec<u8>),
                (c"puid", |named| named.sid.to_string().into_bytes()),
            ] {
                let text = host(lua).servers.get(index).map(of).unwrap_or_default();
                push_text(lua, text);
                ffi::lua_setfield(lua, -2, field.as_ptr());
            }
            ffi::lua_rawseti(lua, -2, index as i64 + 1);
        }
        host(lua).servers = Vec::new();
        1
    }
}

/// `servers(proxy [, name])`: all servers of a proxy, or the one of this name.
unsafe fn servers(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_proxy`.
    unsafe {
        let name = if ffi::lua_type(lua, 2) > ffi::LUA_TNIL { Some(check_bytes(lua, 2)) } else { None };
        let found = with_proxy(lua, |_, proxy| {
            let meant = |server: &&Arc<ServerRun>| name.is_none_or(|name| server.name().as_bytes() == name);
            proxy.servers.iter().filter(meant).map(|server| Named::of(proxy, server)).collect()
        });
        push_servers(lua, found.unwrap_or_default())
    }
}

/// `trackers(server)`: the servers that track this server's health; nil if it was deleted.
unsafe fn trackers(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_server`.
    unsafe {
        let found = with_server(lua, |running, proxy, server| {
            let trackers = running.trackers(proxy.id, server.shared.index);
            trackers.map(|(proxy, server)| Named::of(proxy, server)).collect()
        });
        match found {
            Some(found) => push_servers(lua, found),
            None => 0,
        }
    }
}

/// `server_stats(server)`: the cells of its line of `show stat`; nil once it was deleted.
unsafe fn server_stats(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_server`.
    unsafe {
        match with_server(lua, |running, proxy, server| {
            columns::row(running, Object::Server(proxy, server), Instant::now())
        }) {
            Some(cells) => push_cells(lua, cells),
            None => 0,
        }
    }
}

/// `stats(proxy [, socket])`: the cells of a listening socket's line, or of the proxy's line, which is that of its
/// backend if it has one.
unsafe fn stats(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_proxy`.
    unsafe {
        let socket = usize::try_from(ffi::luaL_optinteger(lua, 2, -1));
        let cells = with_proxy(lua, |running, proxy| {
            let object = match socket {
                Ok(socket) => Object::Socket(proxy, running.counted_listeners(proxy).get(socket)?),
                Err(_) if proxy.config.kind == ProxyKind::Frontend => Object::Frontend(proxy),
                Err(_) => Object::Backend(proxy),
            };
            Some(columns::row(running, object, Instant::now()))
        });
        push_cells(lua, cells.flatten().unwrap_or_default())
    }
}

/// `mailers(proxy)`: the settings of its alerts by mail, and the names and addresses of its mailers, alternately; nil if it
/// sends none.
unsafe fn mailers(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_proxy`; the values are parked in the host before Lua is called.
    unsafe {
        let found = with_proxy(lua, |running, proxy| {
            let alert = proxy.config.email_alert.as_ref()?;
            let (name, _) = alert.mailers.as_ref()?;
            let section = running.config.mailers.iter().find(|section| section.name == *name)?;
            let host = alert.host.as_ref().map_or_else(info::node_name, ToString::to_string);
            let mut values = vec![
                ("track_server_health", Value::Bool(proxy.config.health.log_checks)),
                ("log_level", Value::Int(alert.level.into())),
                ("mailservers_timeout", Value::Int(section.timeout.as_millis() as i64)),
                ("smtp_hostname", Value::Text(host)),
                ("smtp_from", Value::Text(alert.from.as_ref()?.to_string())),
                ("smtp_to", Value::Text(alert.to.as_ref()?.to_string())),
            ];
            for mailer in section.mailers.iter().rev() {
                let address = format!("{}:{}", mailer.address.ip(), mailer.address.port());
                values.extend([("address", Value::Text(address)), ("name", Value::Text(mailer.name.to_string()))]);
            }
            Some(values)
        });
        let Some(values) = found.flatten() else { return 0 };
        host(lua).values = values;
        ffi::lua_createtable(lua, 0, 8);
        ffi::lua_createtable(lua, 4, 0);
        let mut count = 0;
        while let Some((name, value)) = host(lua).values.pop() {
            if matches!(name, "address" | "name") {
                push_value(lua, Some(value));
                count += 1;
                ffi::lua_rawseti(lua, -2, count);
            } else {
                push_text(lua, name.as_bytes().to_vec());
                push_value(lua, Some(value));
                ffi::lua_rawset(lua, -4);
            }
        }
        2
    }
}

/// `core.disable_legacy_mailers()`.
unsafe fn disable_legacy_mailers(lua: *mut lua_State) -> c_int {
    // SAFETY: nothing is held.
    unsafe {
        if host(lua).phase == Phase::Run {
            raise(lua, c"disable_legacy_mailers: not available outside of init or body context");
        }
        host(lua).shared.sends_mail.store(true, std::sync::atomic::Ordering::Relaxed);
        0
    }
}

/// Pushes the non-empty cells of a line of `show stat`, by the name of their column.
unsafe fn push_cells(lua: *mut lua_State, mut cells: Row) -> c_int {
    // Scripts see the columns of proxies, and not those of modules behind them.
    let columns = columns::COLUMNS.iter().take_while(|column| column.name != "-");
    let values = columns.filter_map(|column| match cells.take(column.name) {
        Cell::Empty => None,
        Cell::Number(number) => Some((column.name, Value::Int(number))),
        Cell::Text(text) => Some((column.name, Value::Text(text.into_owned()))),
    });
    let values = values.collect();
    // An error of Lua's leaves this function by a jump.
    drop(cells);
    // SAFETY: the values are parked in the host before Lua is called.
    unsafe {
        host(lua).values = values;
        host(lua).values.reverse();
        ffi::lua_createtable(lua, 0, 64);
        while let Some((name, value)) = host(lua).values.pop() {
            push_value(lua, Some(value));
            host(lua).text.clear();
            host(lua).text.extend_from_slice(name.as_bytes());
            push_bytes(lua, &host(lua).text);
            ffi::lua_insert(lua, -2);
            ffi::lua_rawset(lua, -3);
        }
        1
    }
}

pub(super) unsafe fn push_value(lua: *mut lua_State, value: Option<Value>) -> c_int {
    // SAFETY: a text is parked in the host.
    unsafe {
        match value {
            None | Some(Value::Nil) => ffi::lua_pushnil(lua),
            Some(Value::Bool(value)) => ffi::lua_pushboolean(lua, c_int::from(value)),
            Some(Value::Int(value)) => ffi::lua_pushinteger(lua, value),
            Some(Value::Text(text)) => push_text(lua, text.into_bytes()),
        }
        1
    }
}

unsafe fn server(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_server`.
    unsafe {
        let what = check_bytes(lua, 2);
        let value = with_server(lua, |_, _, server| {
            let shared = &server.shared;
            match what {
                b"name" => Value::Text(shared.name.to_string()),
                b"puid" => Value::Text(server.config.sid.to_string()),
                b"rid" => Value::Int(shared.revision.into()),
                b"dynamic" => Value::Bool(server.config.dynamic),
                b"addr" => Value::Text(match (server.socket_addr(None), &server.config.address) {
                    (Some(address), _) => format!("{}:{}", address.ip(), address.port()),
                    (None, ServerAddress::Unix(path)) => path.display().to_string(),
                    (None, _) => "<unknown>".to_owned(),
                }),
                b"cur_sess" => Value::Int(i64::from(shared.figures.scur.load(std::sync::atomic::Ordering::Relaxed))),
                b"pend_conn" => Value::Int(i64::from(shared.queued.load(std::sync::atomic::Ordering::Relaxed))),
                b"maxconn" => Value::Int(i64::from(shared.maxconn().unwrap_or(0))),
                b"weight" => Value::Int(i64::from(shared.status().weight)),
                b"draining" => {
                    let status = shared.status();
                    Value::Bool(status.admin == Admin::Drain || (status.is_running() && status.weight == 0))
                }
                b"backup" => Value::Bool(shared.backup),
                _ => Value::Nil,
            }
        });
        push_value(lua, value)
    }
}

/// `tracking(server)`: the server whose health this one tracks, in an array that is empty if there is none; nil once it
/// was deleted.
unsafe fn tracking(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_server`.
    unsafe {
        let found = with_server(lua, |running, _, server| {
            let (proxy, index) = server.config.health.track.as_ref()?.target?;
            let proxy = running.proxies.get(proxy.0 as usize)?;
            Some(Named::of(proxy, proxy.servers.get(index)?))
        });
        match found {
            Some(found) => push_servers(lua, found.into_iter().collect()),
            None => 0,
        }
    }
}

/// The cause of a server's change as shown in log lines and replies.
const BY: &str = "Lua script";

/// `set_server(server, what [, value [, port]])`: returns nil, or the error message.
unsafe fn set_server(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_server`.
    unsafe {
        let what = check_bytes(lua, 2);
        let text = |index| {
            let bytes = if ffi::lua_type(lua, index) > ffi::LUA_TNIL { check_bytes(lua, index) } else { b"" };
            std::str::from_utf8(bytes).unwrap_or("?")
        };
        let (text, port) = (text(3), text(4));
        let said = with_server(lua, |running, proxy, server| {
            let direct = |directive| {
                proxy.direct_by(running, server, directive, BY);
                None
            };
            match what {
                b"drain" => direct(Directive::State(Admin::Drain)),
                b"maint" => direct(Directive::State(Admin::Maintenance)),
                b"ready" => direct(Directive::State(Admin::Ready)),
                // The health of a server that tracks another one is not its own.
                b"check_force_up" | b"check_force_nolb" | b"check_force_down"
                    if server.config.health.track.is_some() =>
                {
                    None
                }
                b"check_force_up" => direct(Directive::Health(HealthWord::Up)),
                b"check_force_nolb" => direct(Directive::Health(HealthWord::Stopping)),
                b"check_force_down" => direct(Directive::Health(HealthWord::Down)),
                b"check_enable" if server.config.check.is_some() => direct(Directive::Checks(true)),
                b"check_disable" => direct(Directive::Checks(false)),
                b"addr" => {
                    Some(proxy.move_server(running, server, (text, Some(port).filter(|port| !port.is_empty())), BY))
                }
                b"agent_enable" if server.config.health.agent.is_some() => direct(Directive::AgentChecks(true)),
                b"agent_disable" => direct(Directive::AgentChecks(false)),
                b"agent_force_up" | b"agent_force_down" if !server.shared.status().agent.enabled => None,
                b"agent_force_up" => direct(Directive::Agent(true)),
                b"agent_force_down" => direct(Directive::Agent(false)),
                b"maxconn" => match text.parse::<u32>() {
                    Ok(maxconn) => {
                        proxy.backend.set_maxconn(server.shared.index, maxconn);
                        None
                    }
                    Err(_) => Some("Integer parsing error.".to_owned()),
                },
                b"weight" => match parse_weight(text, server.config.weight, proxy.backend.dynamic) {
                    Ok(weight) => direct(Directive::Weight(weight)),
                    Err(error) => Some(error.message().trim_end().to_owned()),
                },
                _ => None,
            }
        });
        push_value(lua, said.flatten().map(Value::Text))
    }
}

/// `shut(proxy)`: ends the streams of all backup servers; each worker does so asynchronously.
unsafe fn shut(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_proxy`; nothing is alive when this returns.
    unsafe {
        let phase = host(lua).phase;
        with_proxy(lua, |running, proxy| {
            let backups = proxy.servers.iter().filter(|server| server.shared.backup);
            shut_servers(phase, running, backups.map(|server| server.shared.life).collect());
        });
        0
    }
}

/// `shut_server(server)`: like `shut`, for one server.
unsafe fn shut_server(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_server`; nothing is alive when this returns.
    unsafe {
        let phase = host(lua).phase;
        with_server(lua, |running, _, server| shut_servers(phase, running, vec![server.shared.life]));
        0
    }
}

fn shut_servers(phase: Phase, running: &Running, lives: Vec<u64>) {
    // Before traffic there is no stream, and no runtime either.
    if phase != Phase::Run {
        return;
    }
    let process = running.process.clone();
    tokio::task::spawn_local(async move {
        for life in lives {
            end_streams(&process, Which::OfServer(life)).await;
        }
    });
}

async fn end_streams(process: &Process, which: Which) {
    for worker in 0..process.workers.len() {
        let mut next = Some(0);
        while let Some(from) = next {
            let found = process.on_worker(worker, move |worker| worker.end_streams(which, Killer::Admin, from)).await;
            next = found.and_then(|found| found.next);
        }
    }
}

/// `gate(proxy, what)`: `pause`, `resume` or `stop` of a frontend; returns whether anything changed.
unsafe fn gate(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_proxy`.
    unsafe {
        let to = match check_bytes(lua, 2) {
            b"pause" => Gate::Paused,
            b"resume" => Gate::Open,
            _ => Gate::Shut,
        };
        let changed = with_proxy(lua, |running, proxy| {
            proxy.config.kind != ProxyKind::Backend && proxy.turn(to, &running.logger).is_ok()
        });
        ffi::lua_pushboolean(lua, c_int::from(changed.unwrap_or(false)));
        1
    }
}

unsafe fn proxy(lua: *mut lua_State) -> c_int {
    // SAFETY: as `with_proxy`.
    unsafe {
        let what = check_bytes(lua, 2);
        let value = with_proxy(lua, |_, proxy| match what {
            b"name" => Value::Text(proxy.config.name.to_string()),
            b"cap" => Value::Text(
                match proxy.config.kind {
                    ProxyKind::Frontend => "frontend",
                    ProxyKind::Backend => "backend",
                    ProxyKind::Listen => "proxy",
                }
                .to_owned(),
            ),
            b"mode" => Value::Text(if proxy.config.mode == Mode::Http { "http" } else { "tcp" }.to_owned()),
            b"srv_act" => Value::Int(proxy.backend.usable_servers().0 as i64),
            b"srv_bck" => Value::Int(proxy.backend.usable_servers().1 as i64),
            _ => Value::Nil,
        });
        push_value(lua, value)
    }
}

/// `core.get_info()`: the lines of `show info` as a table.
unsafe fn get_info(lua: *mut lua_State) -> c_int {
    // SAFETY: the text is copied into Lua before it is taken apart there.
    unsafe {
        let mut text = String::new();
        if let Some(running) = running(lua) {
            info::lines(&info::fields(&running, false), None, &mut text);
        }
        push_text(lua, text.into_bytes());
        ffi::lua_createtable(lua, 0, 64);
        let table = ffi::lua_gettop(lua);
        let lines = check_bytes(lua, table - 1);
        for line in lines.split(|byte| *byte == b'\n') {
            let Some(colon) = line.windows(2).position(|pair| pair == b": ") else { continue };
            push_bytes(lua, &line[..colon]);
            let value = &line[colon + 2..];
            match std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok()) {
                Some(number) => ffi::lua_pushinteger(lua, number),
                None => push_bytes(lua, value),
            }
            ffi::lua_rawset(lua, table);
        }
        1
    }
}

/// `core.get_var(name)`: a variable of the process.
unsafe fn get_var(lua: *mut lua_State) -> c_int {
    // SAFETY: the sample is parked in the host while it is pushed.
    unsafe {
        let name = std::str::from_utf8(check_bytes(lua, 1)).unwrap_or("");
        let sample = match crate::sample::VarRef::parse(name) {
            Some(crate::sample::VarRef::Process(variable)) => variable.get(),
            _ => None,
        };
        match sample {
            Some(sample) => super::host::push_sample(lua, sample),
            None => ffi::lua_pushnil(lua),
        }
        1
    }
}

/// Returns the network that `text` names.
fn network(text: &[u8]) -> Option<(IpAddr, u8)> {
    sluicegate_pattern::network(std::str::from_utf8(text).ok()?)
}

/// `core.parse_addr(text)`: an address or network for `core.match_addr`, represented by its text; nil if it is invalid.
unsafe fn parse_addr(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        if network(check_bytes(lua, 1)).is_some() {
            ffi::lua_pushvalue(lua, 1);
        } else {
            ffi::lua_pushnil(lua);
        }
        1
    }
}

/// `core.match_addr(one, other)`: returns whether one of them contains the other.
unsafe fn match_addr(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let (Some(one), Some(other)) = (network(check_bytes(lua, 1)), network(check_bytes(lua, 2))) else {
            raise(lua, c"match_addr: an address of core.parse_addr is expected");
        };
        let length = one.1.min(other.1);
        let matches = one.0.is_ipv4() == other.0.is_ipv4() && sluicegate_pattern::in_network(one.0, other.0, length);
        ffi::lua_pushboolean(lua, c_int::from(matches));
        1
    }
}

unsafe fn bell(lua: *mut lua_State) -> c_int {
    // SAFETY: the box is made after the last call that may raise.
    unsafe {
        let slot = ffi::lua_newuserdatauv(lua, size_of::<*const Notify>(), 0) as *mut *const Notify;
        *slot = std::ptr::null();
        ffi::lua_rawgetp(lua, ffi::LUA_REGISTRYINDEX, (&raw const key::BELL).cast());
        ffi::lua_setmetatable(lua, -2);
        *slot = Arc::into_raw(Arc::new(Notify::new()));
        1
    }
}

/// Returns argument 1 as a bell; raises an error for anything else.
unsafe fn check_bell(lua: *mut lua_State) -> *mut *const Notify {
    // SAFETY: the metatable proves that the block holds a pointer from `bell`, null once collected.
    unsafe {
        let slot = check_object::<*const Notify>(lua, &key::BELL, c"queue expected");
        if (*slot).is_null() {
            ffi::luaL_argerror(lua, 1, c"queue expected".as_ptr());
        }
        slot
    }
}

unsafe fn collect_bell(lua: *mut lua_State) -> c_int {
    // SAFETY: the pointer is cleared before the bell goes, so a finalizer that is called by hand is harmless.
    unsafe {
        let slot = check_bell(lua);
        drop(Arc::from_raw(std::mem::replace(&mut *slot, std::ptr::null())));
        0
    }
}

unsafe fn wake(lua: *mut lua_State) -> c_int {
    // SAFETY: as `check_bell`.
    unsafe {
        let slot = check_bell(lua);
        (**slot).notify_one();
        0
    }
}

/// `listen(bell [, milliseconds])`: waits until the bell rings, or the time is over.
unsafe fn listen(lua: *mut lua_State) -> c_int {
    // SAFETY: the count is raised for the operation, which the host owns before anything can raise.
    unsafe {
        let slot = check_bell(lua);
        let limit = match ffi::lua_type(lua, 2) {
            ffi::LUA_TNONE | ffi::LUA_TNIL => None,
            _ => Some(Duration::from_millis(ffi::luaL_checkinteger(lua, 2).clamp(0, i64::from(u32::MAX)) as u64)),
        };
        Arc::increment_strong_count(*slot);
        let operation = Operation::Bell(Arc::from_raw(*slot), limit);
        wait_for(lua, operation, 0, continuation!(nothing))
    }
}

unsafe fn nothing(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: dropping the outcome calls nothing of Lua's.
    unsafe { host(lua).outcome = None };
    0
}

unsafe fn gettime(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        ffi::lua_pushnumber(lua, now.as_secs_f64());
        1
    }
}

unsafe fn sleep(lua: *mut lua_State) -> c_int {
    // SAFETY: a C function's usual stack.
    unsafe {
        let seconds = ffi::luaL_checknumber(lua, 1);
        let seconds = if seconds.is_finite() { seconds.clamp(0.0, f64::from(u32::MAX)) } else { 0.0 };
        wait_for(lua, Operation::Sleep(Duration::from_secs_f64(seconds)), 0, continuation!(nothing))
    }
}

/// `toip(name)`: returns the first address, and a table of all results; nil and the reason on failure.
unsafe fn toip(lua: *mut lua_State) -> c_int {
    // SAFETY: the name is copied last.
    unsafe {
        let Ok(name) = std::str::from_utf8(check_bytes(lua, 1)) else { raise(lua, c"toip: a name is expected") };
        wait_for(lua, Operation::Resolve(name.to_owned()), 0, continuation!(resolved))
    }
}

unsafe fn resolved(lua: *mut lua_State, _: c_int, _: lua_KContext) -> c_int {
    // SAFETY: the result is stored in the host as one text, and the vector is dropped before Lua is called.
    unsafe {
        let found = match host(lua).outcome.take() {
            Some(Outcome::Resolved(Ok(found))) if !found.is_empty() => found,
            other => {
                drop(other);
                ffi::lua_pushnil(lua);
                ffi::lua_pushstring(lua, c"host or service not provided, or not known".as_ptr());
                return 2;
            }
        };
        let count = found.len();
        let text = found.iter().map(|ip| format!("{ip}\n")).collect::<String>();
        drop(found);
        push_text(lua, text.into_bytes());
        let lines = ffi::lua_gettop(lua);
        ffi::lua_createtable(lua, count as c_int, 0);
        let first_end = memchr::memchr(b'\n', check_bytes(lua, lines)).unwrap_or(0);
        for (index, ip) in check_bytes(lua, lines).split(|byte| *byte == b'\n').take(count).enumerate() {
            push_bytes(lua, ip);
            ffi::lua_rawseti(lua, lines + 1, index as i64 + 1);
        }
        ffi::lua_createtable(lua, 0, 3);
        ffi::lua_pushvalue(lua, 1);
        ffi::lua_setfield(lua, -2, c"name".as_ptr());
        ffi::lua_createtable(lua, 0, 0);
        ffi::lua_setfield(lua, -2, c"alias".as_ptr());
        ffi::lua_pushvalue(lua, lines + 1);
        ffi::lua_setfield(lua, -2, c"ip".as_ptr());
        push_bytes(lua, &check_bytes(lua, lines)[..first_end]);
        ffi::lua_insert(lua, -2);
        2
    }
}

unsafe fn hostname(lua: *mut lua_State) -> c_int {
    // SAFETY: the text is parked in the host.
    unsafe {
        push_text(lua, info::node_name().into_bytes());
        1
    }
}
