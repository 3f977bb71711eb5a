-- What scripts can tell, and what it gives here; the section "Lua" of docs/reference/scripting.md tells users.
-0 --> true 0
local goto=1 return goto --> nil "user_script:1: '<name>' expected near 'goto'"
return 5//2 --> true 2
return 5 & 2 --> true 0
return 5%0 --> false "user_script:1: attempt to perform 'n%0'"
for i=1,10,0 do return i end --> false "user_script:1: 'for' step is zero"
local a='a' return a+1 --> false "user_script:1: attempt to perform arithmetic on a string value"
pcall(string.dump,function() end) --> true false "unable to dump given function"
pcall(function() return #setmetatable({1,2},{__len=function() return 9 end}) end) --> true true 9
pcall(function() return setmetatable({},{__eq=function() return true end})==setmetatable({},{__eq=function() return true end}) end) --> true true true
5%math.huge --> true 5
-5%math.huge --> true inf
5%-math.huge --> true -inf
2^31 .. '' --> true "2147483648.0"
collectgarbage('step') --> true true
loadstring('break') --> true nil "[string "break"]:1: break outside loop at line 1"
loadstring('local x <const> = 1 return x') --> true function
loadstring('return ~1') --> true function
loadstring('(x)') --> true nil "[string "(x)"]:1: '=' expected near '<eof>'"
loadstring('a\n(b)') --> true function
loadstring(';') --> true function
loadstring('::a::') --> true function
0xffffffffffffffff --> true -1
pcall(loadstring('local a = {} return a / 3')) --> true false "[string "local a = {} return a / 3"]:1: attempt to perform arithmetic on a table value"
(function() local a = 2.5 return a * 2 .. '' end)() --> true "5.0"
10 / 2 .. '' --> true "5.0"
1e3 .. '' --> true "1000.0"
48427900502675.83 .. '' --> true "48427900502676.0"
123456789012345 .. '' --> true "123456789012345"
(function() local a, b = 1700000000000, 10000000 return a * b end)() --> true -1.4467440737095516e+18
#{1,nil,3,nil} --> true 3
