package dnp

import (
	"slices"
	"testing"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
)

// The interface of an end without a link is read too: the half may get the link while it runs.
func TestInterfacesOfAllEndsAreRead(t *testing.T) {
	cfg := config.DefaultAgent()
	cfg.Links = map[string]config.LinkAddr{"X+": {Local: "127.0.0.1:1", Peer: "127.0.0.1:2", Interface: "if0"},
		"Z+": {Local: "127.0.0.1:3", Interface: "if1"}, "Z-": {Local: "127.0.0.1:4"}}
	d := &dnpHalf{Common: half.Common{Config: cfg}}
	sources, err := d.dnpSources()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range sources {
		names = append(names, s.Name())
	}
	if !slices.Contains(names, "iferrors:if0:X+") || !slices.Contains(names, "iferrors:if1:Z+") || len(sources) != 5 {
		t.Errorf("sources: %v", names)
	}
}
