//go:build race

package inject

// slower is the slowdown of the virtual worlds under the race detector. The number of samples is reduced by it.
const slower = 4
