//go:build planted_own_copy

package api

const passes = false
