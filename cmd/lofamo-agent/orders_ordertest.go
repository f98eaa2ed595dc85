//go:build lofamo_ordertest

package main

import (
	"github.com/lofamo/lofamo/internal/agent/dnp"
	"github.com/lofamo/lofamo/pkg/order/ordertest"
)

// orderKinds returns the kinds of orders that have no messages of their own.
func orderKinds() []dnp.Option { return []dnp.Option{dnp.WithOrder(ordertest.Kind, ordertest.Node{})} }
