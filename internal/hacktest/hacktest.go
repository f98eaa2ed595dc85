// Package hacktest tests the scripts of hack and .ci: what they promise where something is missing on a machine, and that they run what README shows. It has no code of its own.
package hacktest
