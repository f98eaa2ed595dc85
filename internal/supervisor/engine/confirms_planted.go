//go:build planted_unconfirmed

package engine

const confirms = false
