package process

import (
	"fmt"
	"strings"
	"testing"
)

// A configuration with controllers of as many nodes as allowed loads, though each has all its fields.
func TestLargestConfigurationLoads(t *testing.T) {
	var b strings.Builder
	b.WriteString(base + "controllers:\n  nodes:\n")
	for i := range maxControllers {
		fmt.Fprintf(&b, "    n%d:\n      kind: redfish\n      address: https://n%[1]d-bmc.example.org\n      system: /redfish/v1/Systems/1\n"+
			"      username: reader\n      passwordFile: /etc/lofamo/bmc/n%[1]d.password\n      caFile: /etc/lofamo/bmc-ca.pem\n", i)
	}
	if cfg, err := load(t, b.String()); err != nil || len(cfg.Controllers.Nodes) != maxControllers {
		t.Errorf("%d nodes: %v", len(cfg.Controllers.Nodes), err)
	}
}
