local max, lease, id, renews = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4] == 'RENEW'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
local held = redis.call('ZCARD', KEYS[1])
local known = redis.call('ZSCORE', KEYS[1], id)
local allowed = renews or held < max or known
if allowed then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + lease), id)
  if not known then held = held + 1 end
end
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
if last[2] then redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', last[2] + 1)) end
return {allowed and 1 or 0, math.max(0, max - held), allowed and 0 or -1, 0}
