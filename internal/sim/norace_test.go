//go:build !race

package sim

// raceEnabled says that the race detector makes everything slower.
const raceEnabled = false
