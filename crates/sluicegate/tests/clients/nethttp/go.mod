module nethttp

go 1.24
