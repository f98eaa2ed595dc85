package supervisor_test

import (
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// TestLeaderShowsThatSilenceDoesNotCount: after a loss of messages, the leader's metric says that silence does not count. A follower's does
// not.
func TestLeaderShowsThatSilenceDoesNotCount(t *testing.T) {
	t.Parallel()
	c, sups, leader := three(t, supervisortest.Options{})
	discounts := func(i int) bool {
		return strings.Contains(scrape(t, c.Configs[i].HTTP), "\nlofamo_silence_discounted 1\n")
	}
	for i := range sups {
		if discounts(i) {
			t.Errorf("replica %d discounts silence before a loss", i)
		}
		sups[i].Lost()
		if discounts(i) != (i == leader) {
			t.Errorf("after a loss, replica %d discounts silence: %t; it leads: %t", i, discounts(i), i == leader)
		}
	}
}
