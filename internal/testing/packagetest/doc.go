// Package packagetest installs the packages and units of deploy on a copy of this machine's root, and checks what
// remains after their removal. The package contains only tests.
package packagetest
