// Package command has an example of a command for the executor process: how docs/extending.md says that a program is written
// that a response has run. What is here in Go is its test, which runs it as the executor process does.
package command
