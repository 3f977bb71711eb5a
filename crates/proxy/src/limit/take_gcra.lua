local interval, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local tolerance, ahead = interval * burst, 0
local stored = redis.call('GET', KEYS[1])
if stored then
  local us, ns = string.match(stored, '^(%d+)(%d%d%d)$')
  if not us then return redis.error_reply('ERR the key holds no limit of this kind') end
  ahead = math.max(0, (us - now) * 1000 + ns)
end
local after = ahead + interval * cost
local allowed = after <= tolerance or cost == 0
local retry = 0
if allowed then
  ahead = after
  if cost > 0 then
    local ns = after % 1000
    local value = string.format('%.0f%03d', now + (after - ns) / 1000, ns)
    redis.call('SET', KEYS[1], value, 'PX', math.ceil(after / 1000000) + 1)
  end
elseif cost > burst then
  retry = -1
else
  retry = math.ceil((after - tolerance) / 1000)
end
local remaining = math.max(0, math.floor((tolerance - ahead) / interval))
return {allowed and 1 or 0, remaining, retry, math.ceil(ahead / 1000)}
