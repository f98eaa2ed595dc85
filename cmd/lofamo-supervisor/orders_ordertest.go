//go:build lofamo_ordertest

package main

import (
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/order/ordertest"
)

// orderKinds returns the kinds of orders without messages of their own.
func orderKinds() []order.Plain { return []order.Plain{ordertest.Leader{}} }
