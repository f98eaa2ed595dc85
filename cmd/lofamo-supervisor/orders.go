//go:build !lofamo_ordertest

package main

import "github.com/lofamo/lofamo/pkg/order"

// orderKinds returns the kinds of orders without messages of their own: none yet.
func orderKinds() []order.Plain { return nil }
