package deaths

import (
	"fmt"
	"io"
	"time"

	"github.com/lofamo/lofamo/internal/testing/trial"
)

// roundTrip returns the longest way through a window and back that a campaign measured.
func (r *result) roundTrip() (longest time.Duration) {
	for _, e := range r.ends {
		longest = max(longest, e.RoundTrip)
	}
	return longest
}

// cards prints the results of campaigns on nodes with two kernels.
func (r *result) cards(b io.Writer, lines []Line) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(b, format, args...) }
	p(`
## Nodes with two kernels

With `+"`CAMPAIGN_FLAGS=-cards`"+` each node is two machines: a host with the host half, and a card with the DNP half
([how such a node is set up](install.md#a-dnp-half-on-a-network-card)). The hosts have the service network, the cards the torus
links, and each node a network of its own for the window between its halves. The rounds end the kernel of the host, of the card,
or both, or they cut the window while both kernels live. A round fails unless the map names the right part:

| round | FAILED, and cause of the node's state | not accused |
|---|---|---|
| host | `+"`host`, HOST"+` | node, DNP |
| card | `+"`dnp`, DNP"+`; the links to it may be FAILED too | node, host |
| host and card | the node, NODE | other nodes |
| window cut | `+"`bus`, BUS"+`; the cut lasts %s longer, for false verdicts | node, host, DNP |
| agent of the host killed | `+"`host`, HOST"+` | node, DNP |
| orderly reboot of the host | nothing | all |

All else is as above, but no watchdog resets these machines: a hardware watchdog is refused beside a window. Only the end of a host's
boot has a name, because a card states no boot. The *bound* of a half, and of the bus, is the documented bound of a half on a shared
kernel with two changes: `+"`challengeNode` replaces `challengeHalf`"+`, and 40 ms are added for the way through the window and back.
The longest of ten pings between two kernels took %s. The bound of the node is the usual one. A verdict counts from the later of
two events: the component becomes FAILED, and the node's state gets its cause. The table has the bounds of the newest campaign.

**%d passed, %d failed.** Kernels died in %d rounds, and in %d of these
the map named the right part. False verdicts: %d. Virtual machines ran for %.2f hours in all. Reports that nodes kept: %d; **lost: %d;
doubled: %d**; not yet on disk at a death: %d.

`, short(cutHold), trial.Milliseconds(r.roundTrip()), r.all.rounds-r.all.failed, r.all.failed, r.deaths.happened(), r.deaths.right,
		r.all.falseVerdicts, r.machines.Hours(), r.reports.Kept, len(r.reports.Lost), len(r.reports.Doubled), r.reports.Cut)
	p("%s", r.clean(lines))
	p("| end | rounds | failed | named rightly | false verdicts | verdict: median | p99 | max | bound | beyond | last words: median | max " +
		"| NORMAL: median | max |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, k := range Kinds(true) {
		t, bound := r.kinds[k.Name], "–"
		if k.Fails != "" {
			bound = trial.Milliseconds(r.begins[len(r.begins)-1].bound(k))
		}
		p("| %s | %d | %d | %d of %d | %d | %s | %s | %s | %s | %d | %s | %s | %s | %s |\n", k.Name, t.rounds, t.failed, t.right, t.happened(),
			t.falseVerdicts, quantile(t.verdicts, 0.5), quantile(t.verdicts, 0.99), quantile(t.verdicts, 1), bound, t.beyond,
			quantile(t.words, 0.5), quantile(t.words, 1), quantile(t.normal, 0.5), quantile(t.normal, 1))
	}
}
