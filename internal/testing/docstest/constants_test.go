package docstest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// constant is a number that a page states, and the source line that makes it true. Both are compared with single spaces.
type constant struct{ page, text, source, line string }

// constants are the numbers of pages for which no other test compares the page with the code. If one of the two sides changes, change
// the other, and this list.
var constants = []constant{
	{"docs/web.md", "Node.js 20.19, or 22.12 or later", "web/package.json", `"node": "^20.19.0 || >=22.12.0"`},
	{"README.md", "Node.js 20.19, 22.12 or later", "web/package.json", `"node": "^20.19.0 || >=22.12.0"`},
	{"internal/supervisor/web/files.go", "install Node.js 20.19, or 22.12 or later", "web/package.json", `"node": "^20.19.0 || >=22.12.0"`},
	{"docs/web.md", "5m to 24h", "internal/config/supervisor.go", "d < 5*time.Minute || d > 24*time.Hour"},
	{"docs/web.md", "it expires after a minute", "internal/pki/weblogin.go", "WebLoginLife = time.Minute "},
	{"docs/web.md", "for up to two minutes longer", "internal/pki/weblogin.go", "WebSkew = 2 * time.Minute "},
	{"docs/web.md", "a torus of up to 30 places", "web/src/model.ts", "fewNodes = 30\n"},
	{"docs/web.md", "narrower than 600 pixels", "web/src/scene.ts", "clientWidth >= 600"},
	{"docs/web.md", "60 names at most", "web/src/labels.ts", "most = 60\n"},
	{"docs/web.md", "more than 30 places and at least three in each direction", "web/src/model.ts",
		"m.nodes.length <= fewNodes || m.dims.some((n) => n < 3)"},
	{"docs/web.md", "Above 1,500 places", "web/src/scene.ts", "manyNodes = 1500\n"},
	{"docs/web.md", "the newest 150 events", "web/src/main.ts", "maxEvents = 150 "},
	{"docs/web.md", "300 rows at most", "web/src/main.ts", "maxRows = 300 "},
	{"docs/web.md", "the newest 10,000 events", "web/src/timeline.ts", "keep = 10_000 "},
	{"docs/web.md", "three periods of two seconds", "internal/supervisor/web/web.go", "cfg.Alive = 2 * time.Second\n"},
	{"docs/web.md", "three periods of two seconds", "web/src/api.ts", "3 * this.aliveMs"},
	{"docs/web.md", "After three seconds it also tries the other supervisors", "web/src/main.ts", "this.lostAt > 3000"},
	{"docs/web.md", "does not read within 10 s", "internal/supervisor/web/web.go", "writeTime = 10 * time.Second "},
	{"docs/web.md", "128 streams (16 of one person) and 32 requests", "internal/supervisor/web/web.go", "maxStreams = 128 "},
	{"docs/web.md", "128 streams (16 of one person) and 32 requests", "internal/supervisor/web/web.go", "maxStreamsSubject = 16 "},
	{"docs/web.md", "128 streams (16 of one person) and 32 requests", "internal/supervisor/web/web.go", "maxCalls = 32 "},
	{"docs/web.md", "at most 512 connections", "internal/supervisor/listeners.go", "webConns = bounded.Limits{All: 512,"},
	{"docs/web.md", "twice a second", "internal/supervisor/web/map.go", "snapshotAge = 500 * time.Millisecond"},
	{"docs/web.md", "28 ms or more", "web/src/pace.ts", "wantedFrame = 28 "},
	{"docs/web.md", "0.7 of them along each side, then half", "web/src/pace.ts", "leastSharp = 0.5\n"},
	{"docs/web.md", "200 ms after it stops moving", "web/src/scene.ts", "stillAfter = 200 "},
	{"docs/web.md", "first takes longer than 30 s", "internal/e2e/page_test.go", "worst > 30*time.Second"},
	{"docs/web.md", "the second longer than 3 s", "web/test/browser.mjs", "at - committed <= 3000"},

	{"docs/security.md", "| 2,048; 256; 256; 1,536,", "internal/supervisor/listeners.go",
		"{All: 2048, PerSource: 256, PerSubject: 256, Subjects: 1536}"},
	{"docs/security.md", "| 512; 128; 64; 384 |", "internal/supervisor/listeners.go",
		"{All: 512, PerSource: 128, PerSubject: 64, Subjects: 384}"},
	{"docs/security.md", "| 128; 32 (agents: 64; 16) |", "internal/supervisor/listeners.go",
		"httpConns = bounded.Limits{All: 128, PerSource: 32}"},
	{"docs/security.md", "| 128; 32 (agents: 64; 16) |", "internal/agent/host/metrics.go", "bounded.Limits{All: 64, PerSource: 16}"},
	{"docs/security.md", "| 512; 64; none:", "internal/supervisor/listeners.go", "enrolConns = bounded.Limits{All: 512, PerSource: 64}"},
	{"docs/security.md", "| executor process | 128; 32 |", "internal/executor/process/process.go",
		"grpcConns = bounded.Limits{All: 128, PerSource: 32}"},
	{"docs/security.md", "3 s for the handshake; 4 MiB for a request", "internal/executor/process/process.go", "maxRequest = 4 << 20\n"},
	{"docs/security.md", "3 s for the handshake; 4 MiB for a request", "internal/executor/process/process.go",
		"handshakeTime = 3 * time.Second"},
	{"docs/security.md", "peers | 512; 64 (each) |", "internal/supervisor/embedded/listen.go", "maxConns = 512\n"},
	{"docs/security.md", "peers | 512; 64 (each) |", "internal/supervisor/embedded/listen.go", "maxPerSource = 64 "},
	{"docs/security.md", "1,024 calls per connection, 16 MiB per request", "internal/supervisor/embedded/embedded.go",
		"maxStreams = 1024\n"},
	{"docs/security.md", "1,024 calls per connection, 16 MiB per request", "internal/supervisor/embedded/embedded.go",
		"MaxRequestBytes = 16 << 20\n"},
	{"docs/security.md", "| 2,048; 1,024 per user | 128 KiB per request |", "internal/agent/local/local.go",
		"{All: 2048, PerSource: 1024, PerSubject: 1024}"},
	{"docs/security.md", "| 2,048; 1,024 per user | 128 KiB per request |", "internal/agent/local/local.go", "maxRequest = 128 << 10 "},
	{"docs/security.md", "256 calls in progress per subject; 128 KiB per request", "internal/supervisor/api/admission.go", "maxOpen = 256 "},
	{"docs/security.md", "256 calls in progress per subject; 128 KiB per request", "internal/supervisor/api/admission.go",
		"maxRequest = 128 << 10 "},
	{"docs/security.md", "10 s until a request is complete (a topology: 1 min)", "internal/supervisor/api/admission.go",
		"arriveTime = 10 * time.Second\n"},
	{"docs/security.md", "10 s until a request is complete (a topology: 1 min)", "internal/supervisor/api/admission.go",
		"largeTime = time.Minute\n"},
	{"docs/security.md", "10 requests a second of one source (40 at once)", "internal/supervisor/api/enrolment.go",
		"sourceRate, sourceBurst, maxSources = 10, 40,"},
	{"docs/security.md", "50 of all (200 at once)", "internal/supervisor/api/enrolment.go", "enrolRate, enrolBurst = 50, 200\n"},
	{"docs/security.md", "closed after 10 s idle, or after 30 s", "internal/supervisor/api/enrolment.go", "enrolIdle = 10 * time.Second\n"},
	{"docs/security.md", "closed after 10 s idle, or after 30 s", "internal/supervisor/api/enrolment.go", "enrolAge = 30 * time.Second\n"},
	{"docs/security.md", "64 KiB per request, 4 at once per connection", "internal/supervisor/api/enrolment.go", "enrolStreams = 4\n"},
	{"docs/security.md", "64 used logins per subject and 4,096 in all", "internal/supervisor/web/used.go", "maxUsed = 4096 "},
	{"docs/security.md", "64 used logins per subject and 4,096 in all", "internal/supervisor/web/used.go", "maxUsedSubject = 64 "},
	{"docs/security.md", "10 minutes after its token has expired", "internal/supervisor/web/used.go", "usedTime = 10 * time.Minute\n"},
	{"docs/security.md", "may use 2 s of a core at once, and a tenth of a core over time", "internal/supervisor/api/checks.go",
		"checkShare = 0.1 "},
	{"docs/security.md", "may use 2 s of a core at once, and a tenth of a core over time", "internal/supervisor/api/checks.go",
		"checkBurst = 2 * time.Second "},
	{"docs/security.md", "for up to two minutes longer", "internal/pki/weblogin.go", "WebSkew = 2 * time.Minute "},
	{"docs/security.md", "began less than a minute after the revocation", "internal/supervisor/web/login.go", "listDelay = time.Minute\n"},
	{"docs/security.md", "A list holds 4,096 entries", "internal/pki/denylist.go", "MaxDenials = 4096\n"},
	{"docs/security.md", "when at most 60 % of the lifetime is left, and at most eight times", "internal/pki/renewaldesk.go",
		"dueLeft = 60\n"},
	{"docs/security.md", "when at most 60 % of the lifetime is left, and at most eight times", "internal/pki/renewaldesk.go",
		"rarest = 8\n"},
	{"docs/security.md", "within two hours, at a replica", "internal/pki/renewaldesk.go", "clocks = 2 * time.Hour\n"},
	{"docs/security.md", "a link accepts 400 broadcasts a second, and 50 of one origin", "pkg/torus/express/machine.go", "LinkRate = 400\n"},
	{"docs/security.md", "a link accepts 400 broadcasts a second, and 50 of one origin", "pkg/torus/express/machine.go",
		"OriginRate = 50\n"},
	{"docs/security.md", "Where 512 periods of a link are longer", "pkg/torus/express/unfinished.go", "unfinishedPeriods = 512\n"},
	{"docs/security.md", "by at most 10 s at each neighbour", "pkg/torus/express/unfinished.go", "unfinishedMost = 10 * time.Second\n"},
	{"docs/security.md", "by up to 60 s once under each leader, then by up to 3 s of each minute", "pkg/awareness/restarts.go",
		"restartBudget = time.Minute\n"},
	{"docs/security.md", "by up to 60 s once under each leader, then by up to 3 s of each minute", "pkg/awareness/restarts.go",
		"restartShare = 20\n"},
	{"docs/security.md", "a budget of 4 × `stopLimit`, which then regrows by 3 s a minute", "pkg/awareness/stops.go", "stopBudget = 4\n"},
	{"docs/security.md", "a budget of 4 × `stopLimit`, which then regrows by 3 s a minute", "pkg/awareness/stops.go", "stopShare = 20\n"},
	{"docs/security.md", "While it still reports, a notice lasts 30 s", "pkg/fault/fault.go", "MaxRestart = 30 * time.Second\n"},
	{"docs/security.md", "more than 10,000 per second makes that link end", "pkg/torus/udplink/udplink.go", "packetRate = 10_000\n"},
	{"docs/security.md", "more than 20 a second to a link", "pkg/torus/udplink/refusal.go", "strangeRate, strangeBurst = 20, 64\n"},
	{"docs/security.md", "more than 500 errors a second to the report socket", "pkg/servicenet/direct/refused.go",
		"strangeRate, strangeBurst = 500, 500\n"},
	{"docs/security.md", "off for 1 s, doubled up to 64 s", "pkg/servicenet/direct/refused.go",
		"strangeRest, strangeRestMost = time.Second, 64 * time.Second\n"},
	{"docs/security.md", "50 answers per second to the configured supervisors", "internal/agent/host/hostcore/asked.go",
		"staleRate, staleBurst = 50, 100\n"},
	{"docs/security.md", "for a challenge of the last 2 s, 64 answers", "internal/agent/host/hostcore/asked.go", "answersMost = 64\n"},
	{"docs/security.md", "for a challenge of the last 2 s, 64 answers", "internal/agent/host/hostcore/asked.go",
		"challengeLife = 2 * time.Second\n"},
	{"docs/security.md", "renewed every hour", "pkg/torus/udplink/udplink.go", "DefaultRekey = time.Hour\n"},
	{"docs/security.md", "the limit of 200 policies", "pkg/response/policy/policy.go", "MaxDocuments = 200 "},
	{"docs/security.md", "8 changes a second", "internal/supervisor/api/policyobjects.go", "maxKept = 8\n"},
	{"docs/security.md", "8 changes a second", "internal/executor/kubernetes/policies.go", "policiesEvery, policiesLook = time.Second,"},

	{"docs/jobs.md", "eurekas (10 a second of a user, 20 at once)", "internal/agent/local/eureka.go", "jobs.Limit{Rate: 10, Burst: 20}"},
	{"docs/jobs.md", "500 a second of a user", "internal/agent/local/barrier.go", "jobs.Limit{Rate: 500,"},
	{"docs/jobs.md", "256 of eurekas, 64 of faults", "internal/agent/local/eureka.go", "maxListeners = 256 "},
	{"docs/jobs.md", "256 of eurekas, 64 of faults", "internal/agent/local/local.go", "maxWatchers = 64\n"},
	{"docs/jobs.md", "barriers (256) or waiting calls (1,024)", "internal/agent/local/jobs/jobs.go", "MaxBarriers = 256 "},
	{"docs/jobs.md", "barriers (256) or waiting calls (1,024)", "internal/agent/local/jobs/jobs.go", "MaxWaiting = 1024 "},
	{"docs/jobs.md", "20 a second, 24 at once", "pkg/torus/express/machine.go", "ownRate, ownBurst = 40, 48\n"},
	{"docs/jobs.md", "20 a second, 24 at once", "pkg/torus/express/budget.go", "b.jobs.settle(now, ownRate/2)\n"},
	{"docs/jobs.md", "at most 1,024 nodes for its barriers", "internal/agent/local/jobs/jobs.go", "MaxMembers = 1024 "},
	{"docs/jobs.md", "in any order, at most 1,024 nodes", "internal/agent/local/jobs/jobs.go", "MaxMembers = 1024 "},
	{"docs/jobs.md", "(`Participants`, at most 256)", "internal/agent/local/jobs/jobs.go", "MaxParticipants = 256 "},
	{"docs/jobs.md", "64 of them wait for a watcher", "internal/agent/local/eureka.go", "maxWaiting = 64 "},
	{"docs/jobs.md", "at most 512 bytes each", "pkg/servicenet/checkeureka.go", "MaxEurekaBody = 512\n"},
	{"docs/jobs.md", "about a second after the map calls the member FAILED", "internal/agent/local/jobs/barrier.go",
		"goneAfter = time.Second\n"},

	{"docs/webhooks.md", "at most 64 KiB of an answer", "internal/executor/httpcall.go", "MaxHTTPAnswer = 64 << 10 "},
	{"docs/webhooks.md", "at most 16 to one target", "internal/executor/webhook/webhook.go", "atOnce = 16\n"},
	{"docs/webhooks.md", "250 ms to 15 s apart", "internal/executor/webhook/attempt.go", "firstPause = 250 * time.Millisecond\n"},
	{"docs/webhooks.md", "250 ms to 15 s apart", "internal/executor/webhook/attempt.go", "lastPause = 15 * time.Second\n"},
	{"docs/webhooks.md", "values from 0.1 to 60 s take effect", "internal/executor/webhook/attempt.go", "longest = time.Minute "},
	{"docs/webhooks.md", "values from 0.1 to 60 s take effect", "internal/executor/webhook/attempt.go",
		"shortest = 100 * time.Millisecond\n"},

	{"docs/operations.md", "ten million for each second since 2025", "internal/supervisor/embedded/restore.go", "perSecond = 10_000_000\n"},
	{"docs/operations.md", "less than 128 MiB free, and one that has data with less than 4 MiB", "internal/supervisor/embedded/embedded.go",
		"newRoom = 128 << 20\n"},
	{"docs/operations.md", "less than 128 MiB free, and one that has data with less than 4 MiB", "internal/supervisor/embedded/embedded.go",
		"oldRoom = 4 << 20\n"},
	{"docs/operations.md", "less than a sixteenth of its quota left", "internal/supervisor/embedded/space.go", "roomFraction = 16\n"},
	{"docs/operations.md", "longer leases, up to 8 s", "internal/supervisor/store/lease.go", "maxLeaseTTL = 8\n"},
	{"docs/operations.md", "waits (`--wait`, 5 minutes)", "internal/ctl/cluster/supervisor.go", `"wait", 5*time.Minute,`},
	{"docs/install.md", "not back within 20 s", "internal/agent/daemon/restart.go", "restartWithin = 20 * time.Second\n"},
	{"docs/topology.md", "no supervisor hears within 5 s", "internal/supervisor/api/join.go", "agentsWithin = 5 * time.Second\n"},
	{"docs/topology.md", "for at most 15 s, and its silence accuses nobody", "pkg/awareness/config.go",
		"DefaultRelinkBound = 15 * time.Second\n"},
	{"docs/topology.md", "(`--drain`, 15 s)", "internal/ctl/cluster/replace.go", `"drain", 15*time.Second,`},
	{"docs/topology.md", "(`--wait`, 30 min)", "internal/ctl/cluster/replace.go", `"wait", 30*time.Minute,`},
}

// TestPagesStateConstantsOfCode: each number in the list is in the page and in the code.
func TestPagesStateConstantsOfCode(t *testing.T) {
	texts := make(map[string]string)
	has := func(file, text string) bool {
		if texts[file] == "" {
			b, err := os.ReadFile(filepath.Join(top, file))
			if err != nil {
				t.Fatal(err)
			}
			texts[file] = singleSpaces(string(b))
		}
		return strings.Contains(texts[file], singleSpaces(text))
	}
	for _, c := range constants {
		if !has(c.page, c.text) {
			t.Errorf("%s no longer states %q: compare with %q in %s", c.page, c.text, strings.TrimSpace(c.line), c.source)
		}
		if !has(c.source, c.line) {
			t.Errorf("%s no longer has %q: correct %q in %s", c.source, strings.TrimSpace(c.line), c.text, c.page)
		}
	}
}

// singleSpaces replaces each run of blanks, or of line ends, by one blank. A blank at the end of a text keeps 1024 from being found in
// 10240.
func singleSpaces(text string) string {
	out := strings.Join(strings.Fields(text), " ")
	if strings.TrimRight(text, " \n") != text {
		out += " "
	}
	return out
}
