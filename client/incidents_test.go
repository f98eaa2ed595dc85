package client_test

import (
	"slices"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// TestAllIncidentsNamesMissingRegionsOfEveryPage: a region that stops to answer between two pages is missing from the joined list.
func TestAllIncidentsNamesMissingRegionsOfEveryPage(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	m.Incidents = []*lofamov1.Incident{{Id: "r1/k3f9-aaaaaaaa"}, {Id: "r1/k3f9-bbbbbbbb"}, {Id: "r1/k3f9-cccccccc"}}
	m.MissingRegions = map[string][]string{"": {"r3"}, "1": {"r2", "r3"}, "2": {"r2"}}
	c := dial(t, dir, clienttest.Serve(t, dir, m).Address)
	all, err := c.AllIncidents(bounded(t), &lofamov1.ListIncidentsRequest{}, 1)
	if err != nil || len(all.GetIncidents()) != 3 || !slices.Equal(all.GetMissingRegions(), []string{"r2", "r3"}) {
		t.Errorf("%v, %v: want three incidents, without the regions r2 and r3", all, err)
	}
}
