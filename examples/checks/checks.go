// Package checks has examples of check programs: how docs/extending.md says that a sensor of one's own is written. They are
// programs, and not Go; what is here in Go is their test, which runs them as an agent does.
package checks
