// Package archtest holds the rules of the architecture as tests: who may import whom, what a pure
// package must not touch, that every package says what it is for. It has no code of its own.
package archtest
