//go:build !race

package inject

const slower = 1
