// Package checks has examples of check programs: custom sensors as described in docs/extending.md. They are programs,
// and not written in Go. The Go code here is their test, which runs them as an agent does.
package checks
