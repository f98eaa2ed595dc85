// Package archtest holds the rules of the architecture as tests: allowed imports, restrictions on pure packages, a
// purpose in every package's comment. It has no other code.
package archtest
