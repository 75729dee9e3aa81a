module netstack-get

go 1.23.1

require (
	golang.org/x/sys v0.26.0
	gvisor.dev/gvisor v0.0.0-20250205023644-9414b50a5633
)

require (
	github.com/google/btree v1.1.2 // indirect
	golang.org/x/time v0.7.0 // indirect
)
