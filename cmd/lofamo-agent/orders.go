//go:build !lofamo_ordertest

package main

import "github.com/lofamo/lofamo/internal/agent/dnp"

// orderKinds returns the kinds of orders that have no messages of their own: none yet.
func orderKinds() []dnp.Option { return nil }
