// Package packagetest installs what the packages and units of deploy say on a copy of this machine's root, and looks what is left
// when they are gone. It has tests alone.
package packagetest
