-- The parts of HAProxy's API that are Lua: objects of plain tables over the functions of `native`.
local native = ...

-- Proxies and servers. Each object names its place in the configuration (fields 1 and 2); what it tells is read from
-- the running process at each call.
local Server = {}
Server.__index = Server

function Server:get_name() return self.name end
function Server:get_puid() return self.puid end
function Server:get_addr() return native.server(self[1], self[2], "addr") end
function Server:get_stats() return native.stats(self[1], self[2]) end
function Server:get_cur_sess() return native.server(self[1], self[2], "cur_sess") end
function Server:get_pend_conn() return native.server(self[1], self[2], "pend_conn") end
function Server:get_maxconn() return native.server(self[1], self[2], "maxconn") end
function Server:get_weight() return native.server(self[1], self[2], "weight") end
function Server:is_draining() return native.server(self[1], self[2], "draining") end
function Server:is_backup() return native.server(self[1], self[2], "backup") end
function Server:is_dynamic() return false end
function Server:get_proxy() return core.proxies[native.proxy(self[1], "name")] end
function Server:set_maxconn(value) return native.set_server(self[1], self[2], "maxconn", tostring(value)) end
function Server:set_weight(value) return native.set_server(self[1], self[2], "weight", tostring(value)) end
function Server:set_drain() return native.set_server(self[1], self[2], "drain") end
function Server:set_maint() return native.set_server(self[1], self[2], "maint") end
function Server:set_ready() return native.set_server(self[1], self[2], "ready") end

local Proxy = {}
Proxy.__index = Proxy

function Proxy:get_name() return self.name end
function Proxy:get_uuid() return self.uuid end
function Proxy:get_cap() return native.proxy(self[1], "cap") end
function Proxy:get_mode() return native.proxy(self[1], "mode") end
function Proxy:get_srv_act() return native.proxy(self[1], "srv_act") end
function Proxy:get_srv_bck() return native.proxy(self[1], "srv_bck") end
function Proxy:get_stats() return native.stats(self[1], -1) end

local Listener = {}
Listener.__index = Listener

-- What HAProxy has and this process has not: the error names it, instead of a nil that fails somewhere else.
local function missing(class, name, names)
    for _, method in ipairs(names) do
        name[method] = function() error("not available yet: " .. class .. "." .. method, 2) end
    end
end
missing("Server", Server, {
    "set_addr", "shut_sess", "check_enable", "check_disable", "check_force_up", "check_force_nolb",
    "check_force_down", "agent_enable", "agent_disable", "agent_force_up", "agent_force_down", "get_rid", "tracking",
    "get_trackers", "event_sub",
})
missing("Proxy", Proxy, { "pause", "resume", "stop", "shut_bcksess", "get_mailers" })
missing("Listener", Listener, { "get_stats" })

-- Called once, when the configuration runs: `list` is an array of proxies.
local function publish(list)
    core.proxies, core.backends, core.frontends = {}, {}, {}
    for _, proxy in ipairs(list) do
        for _, server in pairs(proxy.servers) do setmetatable(server, Server) end
        for _, listener in pairs(proxy.listeners) do setmetatable(listener, Listener) end
        setmetatable(proxy, Proxy)
        core.proxies[proxy.name] = proxy
        if proxy.back then core.backends[proxy.name] = proxy end
        if proxy.front then core.frontends[proxy.name] = proxy end
        proxy.back, proxy.front = nil, nil
    end
end

-- Concat: pieces that are joined when they are wanted.
local Concat = {}
Concat.__index = Concat

function Concat:add(text)
    self[#self + 1] = text
end

function Concat:dump()
    return table.concat(self)
end

function core.concat()
    return setmetatable({}, Concat)
end

-- Queue: values between coroutines of one state.
local Queue = {}
Queue.__index = Queue

function Queue:size()
    return self.last - self.first + 1
end

function Queue:push(value)
    if value == nil then error("unexpected nil value in push", 2) end
    self.last = self.last + 1
    self.values[self.last] = value
    native.wake(self.bell)
    return true
end

function Queue:pop()
    if self.first > self.last then return nil end
    local value = self.values[self.first]
    self.values[self.first] = nil
    self.first = self.first + 1
    return value
end

function Queue:pop_wait()
    while self.first > self.last do native.listen(self.bell) end
    return self:pop()
end

function core.queue()
    return setmetatable({ values = {}, first = 1, last = 0, bell = native.bell() }, Queue)
end

-- Dates of HTTP (RFC 9110, 5.6.7), as tables that os.time takes.
local MONTHS = { Jan = 1, Feb = 2, Mar = 3, Apr = 4, May = 5, Jun = 6, Jul = 7, Aug = 8, Sep = 9, Oct = 10, Nov = 11, Dec = 12 }

local function date(year, month, day, hour, min, sec)
    if not (year and MONTHS[month]) then return nil end
    return {
        year = math.tointeger(year), month = MONTHS[month], day = math.tointeger(day), hour = math.tointeger(hour),
        min = math.tointeger(min), sec = math.tointeger(sec),
    }
end

function core.imf_date(text)
    local day, month, year, hour, min, sec = text:match("^%a%a%a, (%d%d) (%a%a%a) (%d%d%d%d) (%d%d):(%d%d):(%d%d) GMT$")
    return date(year, month, day, hour, min, sec)
end

function core.rfc850_date(text)
    local day, month, year, hour, min, sec = text:match("^%a+, (%d%d)%-(%a%a%a)%-(%d%d) (%d%d):(%d%d):(%d%d) GMT$")
    -- Two digits: the last century's from 60 on.
    if year then year = math.tointeger(year) + (math.tointeger(year) >= 60 and 1900 or 2000) end
    return date(year, month, day, hour, min, sec)
end

function core.asctime_date(text)
    local month, day, hour, min, sec, year = text:match("^%a%a%a (%a%a%a) ([ %d]%d) (%d%d):(%d%d):(%d%d) (%d%d%d%d)$")
    return date(year, month, day and day:gsub(" ", ""), hour, min, sec)
end

function core.http_date(text)
    return core.imf_date(text) or core.rfc850_date(text) or core.asctime_date(text)
end

-- LuaSocket's names over the proxy's own sockets: nothing blocks, and scripts that `require "socket"` find these even
-- where LuaSocket is installed.
local function unsupported(module)
    return setmetatable({}, {
        __index = function(_, name)
            error("not available in this host: " .. module .. "." .. tostring(name), 2)
        end,
    })
end

package.preload["socket"] = function()
    local socket = unsupported("socket")
    socket._VERSION = "LuaSocket 3.0 (Sluicegate)"
    socket.gettime = native.gettime
    socket.sleep = native.sleep
    socket.tcp = function() return native.socket() end
    socket.tcp4, socket.tcp6 = socket.tcp, socket.tcp
    socket.connect = function(host, port)
        local client = native.socket()
        local ok, message = client:connect(host, port)
        if ok then return client end
        return nil, message
    end
    socket.connect4, socket.connect6 = socket.connect, socket.connect
    socket.dns = unsupported("socket.dns")
    socket.dns.toip = native.toip
    socket.dns.gethostname = native.hostname
    -- Functions that LuaSocket has for scripts to tell errors from results.
    socket.newtry = function(finalizer)
        return function(ok, ...)
            if ok then return ok, ... end
            if finalizer then finalizer() end
            error({ (...) }, 0)
        end
    end
    socket.try = socket.newtry()
    socket.protect = function(f)
        return function(...)
            local results = table.pack(pcall(f, ...))
            if results[1] then return table.unpack(results, 2, results.n) end
            if type(results[2]) == "table" then return nil, results[2][1] end
            error(results[2], 0)
        end
    end
    socket.skip = function(count, ...) return select(count + 1, ...) end
    return socket
end
package.preload["socket.core"] = package.preload["socket"]

package.preload["socket.unix"] = function()
    return function()
        return native.socket("unix")
    end
end

return publish
