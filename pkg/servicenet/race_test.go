//go:build race

package servicenet

const raceEnabled = true
