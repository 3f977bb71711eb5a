local count, period, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local start, used = now - now % period, 0
local stored = redis.call('GET', KEYS[1])
if stored then
  local at, number = string.match(stored, '^(%d+):(%d+)$')
  if not at then return redis.error_reply('ERR the key holds no limit of this kind') end
  if tonumber(at) >= start then start, used = tonumber(at), tonumber(number) end
end
local left = start + period - now
local allowed = used + cost <= count or cost == 0
local retry = 0
if allowed then
  used = used + cost
  if cost > 0 then
    local value = string.format('%.0f:%.0f', start, used)
    redis.call('SET', KEYS[1], value, 'PX', math.ceil(left / 1000) + 1)
  end
else
  retry = cost > count and -1 or left
end
return {allowed and 1 or 0, math.max(0, count - used), retry, used == 0 and 0 or left}
