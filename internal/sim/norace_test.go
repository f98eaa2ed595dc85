//go:build !race

package sim

// raceEnabled says that the race detector makes everything slower. A world is one goroutine: it has little to find here,
// so only some is played under it. make test plays the whole without.
const raceEnabled = false
