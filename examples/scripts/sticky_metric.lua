-- Counts the members of all sets in KEYS from the second on, and keeps the sum in KEYS[1], which is never evicted: STICK
-- is an option of SET that Redis does not have.
local sum = 0
for place = 2, #KEYS do
  sum = sum + redis.call('SCARD', KEYS[place])
end
redis.call('SET', KEYS[1], sum, 'STICK')
return sum
