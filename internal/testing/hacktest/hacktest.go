// Package hacktest tests the scripts of hack and .ci: their behaviour on machines that lack something, and that they run README's
// commands. It contains only tests.
package hacktest
