// Package command has an example of a command for the executor process: a program that a response runs, as described in
// docs/extending.md. The Go code here is its test, which runs it as the executor process does.
package command
