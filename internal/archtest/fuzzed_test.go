package archtest

import (
	"go/ast"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// decoderName is how decoders of bytes are called.
var decoderName = regexp.MustCompile(
	`^(Decode|decode|Parse|parse|Unmarshal|unmarshal|Unpack|unpack|Unwrap|Open|Restore|restore|readHead|ListMarks)([A-Z0-9]|$)`)

// decoding are library functions that decode bytes: their callers are decoders.
var decoding = regexp.MustCompile(
	`^((proto|json|protojson|yaml|binary)\.(Unmarshal|UnmarshalStrict|NewDecoder|Read)|proto\.UnmarshalOptions)$`)

// tools are packages whose input is the repository's, the user's own, or another test's.
var tools = []string{
	"internal/apidoc", "internal/configdoc", "internal/campaign", "internal/ctl", "internal/cluster", "internal/testing/lab",
	"internal/testing/netlab", "internal/testing/trial", "internal/testing/deaths", "internal/testing/docstest", "internal/testing/kubetest",
	"internal/failpoint", "internal/sim", "internal/inventory", "internal/e2e", "internal/testing/charttest",
	"internal/executor/process/powertest",
	"pkg/sensor/source/sourcetest", "papers", "internal/dashboards", "internal/metricsdoc",
	"internal/testing/packagetest", "internal/testing/golden", "internal/program", "cmd",
}

// decoders returns the functions that make values of bytes from outside, as "folder.Name".
func decoders(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, f := range sources(t) {
		if f.test || strings.HasPrefix(f.dir, "api/") || slices.ContainsFunc(tools, func(dir string) bool { return within(f.dir, dir) }) {
			continue
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if ok && fn.Body != nil && (decoderName.MatchString(fn.Name.Name) && takesBytes(fn) || decodes(fn)) {
				out[f.dir+"."+fn.Name.Name] = true
			}
		}
	}
	return out
}

// takesBytes reports whether a function has a parameter of type []byte.
func takesBytes(fn *ast.FuncDecl) bool {
	return slices.ContainsFunc(fn.Type.Params.List, func(p *ast.Field) bool {
		a, ok := p.Type.(*ast.ArrayType)
		if !ok || a.Len != nil {
			return false
		}
		id, ok := a.Elt.(*ast.Ident)
		return ok && id.Name == "byte"
	})
}

// decodes reports whether a function calls a decoding function.
func decodes(fn *ast.FuncDecl) bool {
	found := false
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := s.X.(*ast.Ident); ok && decoding.MatchString(id.Name+"."+s.Sel.Name) {
				found = true
			}
		}
		return !found
	})
	return found
}

// fuzzed names, for every decoder, the fuzz target that reaches it; or, behind "none: ", the reason why there is none.
var fuzzed = map[string]string{
	"examples/checkpoint.listen":                     "none: an example; it reads what its own process wrote",
	"examples/checkpoint.read":                       "none: an example; it reads what its own process wrote",
	"examples/remediator/receiver.ServeHTTP":         "none: an example of a receiver",
	"examples/remediator/receiver.open":              "none: an example; it reads its own file",
	"internal/agent/dnp.AskMask":                     "none: the answer of the node's own half, at a socket of mode 0600",
	"internal/agent/daemon.decodeJoined":             "internal/agent/daemon FuzzJoined",
	"internal/agent/daemon.decodeBoot":               "internal/agent/daemon FuzzBootRecord",
	"internal/agent/daemon.decodePeriods":            "internal/agent/daemon FuzzJoined",
	"internal/supervisor/store.decodeToken":          "internal/supervisor/store FuzzStoreValues",
	"internal/agent/daemon.decodeRecovery":           "internal/agent/daemon FuzzDecodeRecovery",
	"internal/agent/daemon.RestartHalf":              "none: the answer of the node's own daemon, at a socket of mode 0600",
	"internal/agent/host.parseLLDP":                  "internal/agent/host FuzzLLDP",
	"internal/agent/half.HeardHealth":                "internal/agent/mailbox FuzzDecode",
	"internal/agent/half.Post":                       "none: injection, in clusters made by lofamoctl up alone",
	"internal/agent/daemon.restartHalf":              "none: an earlier answer of the node's own daemon, which it has kept in its ledger",
	"internal/agent/actions.Decode":                  "internal/agent/actions FuzzDecode",
	"internal/agent/half.WithPeriods":                "none: the environment that the half's own daemon has set",
	"internal/agent/half.TellAction":                 "none: the answer of the node's own daemon, at a socket of mode 0600",
	"internal/agent/daemon.readRequest":              "none: the request of the node's own half, at a socket of mode 0600",
	"internal/agent/storage.decodeCounters":          "internal/agent/storage FuzzCopyRecords",
	"internal/agent/storage.decodeCopiedReport":      "internal/agent/storage FuzzCopyRecords",
	"internal/agent/half.askCheck":                   "none: the answer of a program that root has configured, run without a shell",
	"internal/agent/dnp/dnpcore.decodeSlot":          "internal/agent/dnp/dnpcore FuzzDecodeSlot",
	"internal/agent/local/jobs.DecodeMail":           "internal/agent/local/jobs FuzzMail",
	"internal/agent/storage.decodeReport":            "pkg/servicenet FuzzMessage",
	"internal/agent/mailbox.Decode":                  "internal/agent/mailbox FuzzDecode",
	"internal/agent/peers.Decode":                    "internal/agent/peers FuzzDecode",
	"internal/agent/half/halfcore.DecodeRecovery":    "internal/agent/half/halfcore FuzzDecodeRecovery",
	"internal/agent/half/halfcore.UnmarshalText":     "internal/agent/half/halfcore FuzzDecodeRecovery",
	"pkg/order.decodeHeld":                           "pkg/order FuzzStoredOrders",
	"internal/agent/half/halfcore.DecodeRelay":       "internal/agent/half/halfcore FuzzDecodeRelay",
	"internal/agent/local.AskStatus":                 "none: the answer of the node's own half, at a socket of mode 0600",
	"internal/agent/local.UnmarshalJSON":             "none: the answer of the node's own half, at a socket of mode 0600",
	"internal/config.checkKeys":                      "internal/config FuzzDecode",
	"internal/config.decode":                         "internal/config FuzzDecode",
	"internal/config.stateDirIn":                     "internal/config FuzzDecode",
	"internal/pki.OpenDenyList":                      "internal/pki FuzzOpenDenyList",
	"internal/pki.OpenKeptDenyList":                  "internal/pki FuzzOpenKeptDenyList",
	"internal/pki.open":                              "internal/pki FuzzOpenDenyList",
	"internal/pki.unpack":                            "internal/pki FuzzUnpack",
	"internal/executor/kubernetes.asMap":             "internal/executor/kubernetes FuzzMarks",
	"internal/executor/kubernetes.marks":             "internal/executor/kubernetes FuzzMarks",
	"internal/executor/kubernetes.ownedByManager":    "internal/executor/kubernetes FuzzMarks",
	"internal/executor/kubernetes.conditionKey":      "internal/executor/kubernetes FuzzMarks",
	"internal/executor/kubernetes.settersOf":         "internal/executor/kubernetes FuzzMarks",
	"internal/executor/kubernetes.remediationOf":     "internal/executor/kubernetes FuzzRemediations",
	"internal/executor/kubernetes.remediationsOf":    "internal/executor/kubernetes FuzzRemediations",
	"internal/executor/kubernetes.specOf":            "internal/executor/kubernetes FuzzRemediations",
	"internal/executor/kubernetes.groupsHave":        "internal/executor/kubernetes FuzzRemediations",
	"internal/executor/kubernetes.resourcesHave":     "internal/executor/kubernetes FuzzRemediations",
	"internal/executor/kubernetes.readEvents":        "internal/executor/kubernetes FuzzObjects",
	"internal/executor/kubernetes.policyStatusOf":    "internal/executor/kubernetes FuzzObjects",
	"internal/executor/kubernetes.readObject":        "internal/executor/kubernetes FuzzObjects",
	"internal/executor/kubernetes.readPage":          "internal/executor/kubernetes FuzzObjects",
	"internal/executor/kubernetes.sameJSON":          "internal/executor/kubernetes FuzzObjects",
	"internal/executor/kubernetes.sameStatus":        "internal/executor/kubernetes FuzzObjects",
	"internal/executor/process.decodeLinks":          "internal/executor/process FuzzControllerAnswers",
	"internal/executor/process.get":                  "internal/executor/process FuzzControllerAnswers",
	"internal/executor/process.collection":           "internal/executor/process FuzzControllerAnswers",
	"internal/executor/process.follow":               "internal/executor/process FuzzRedfishAnswers",
	"internal/executor/process.resetTarget":          "internal/executor/process FuzzRedfishAnswers",
	"internal/executor/process.decodeLedger":         "internal/executor/process FuzzDecodeLedger",
	"internal/executor.Deny":                         "none: a list that pki.OpenDenyList has verified",
	"internal/executor/webhook.parse":                "internal/executor/webhook FuzzReply",
	"internal/pki.parseCerts":                        "internal/pki FuzzParseRoots",
	"internal/pki.parseRoots":                        "internal/pki FuzzParseRoots",
	"internal/supervisor/api.Events":                 "none: bytes that this process has encoded",
	"internal/supervisor/api.ListCertificates":       "none: a list that pki.OpenDenyList has verified",
	"internal/supervisor/engine.addsNothing":         "none: bytes that this process has encoded itself",
	"internal/supervisor/engine.healthOf":            "none: bytes that this process has encoded itself",
	"internal/supervisor/engine.outdated":            "none: bytes that this process has encoded itself",
	"internal/supervisor/ingest.copyKey":             "internal/supervisor/ingest FuzzCopyKey",
	"internal/supervisor/federation.decodeDocument":  "internal/supervisor/federation FuzzRegionDocuments",
	"internal/supervisor/federation.decodeNode":      "internal/supervisor/federation FuzzRegionDocuments",
	"internal/supervisor/federation.read":            "internal/supervisor/federation FuzzRegionDocuments",
	"internal/supervisor/federation.decodeGroup":     "internal/supervisor/federation FuzzRegionDocuments",
	"internal/supervisor/federation.decodeWarning":   "internal/supervisor/federation FuzzRegionDocuments",
	"internal/supervisor/checksum.Open":              "internal/supervisor/checksum FuzzOpen",
	"internal/supervisor/embedded.addMember":         "internal/supervisor/embedded FuzzDatabaseEntries",
	"internal/supervisor/embedded.checkRevision":     "internal/supervisor/embedded FuzzDatabaseEntries",
	"internal/supervisor/embedded.readLog":           "none: etcd's decoder has checked each record's sum, and readLog recovers from panics",
	"internal/supervisor/store.AddAbove":             "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.Bounds":               "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.DecodeMaintenance":    "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.put":                  "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.DecodeMasks":          "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.DecodeOrdered":        "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.decodePolicyRuns":     "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.DecodeRecord":         "internal/supervisor/store FuzzDecodeRecord",
	"internal/supervisor/store.DecodeReports":        "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.DecodeTopology":       "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.Identity":             "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.MaintenanceIn":        "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.Whole":                "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.attempt":              "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.decodeBinary":         "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.decodeEvent":          "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.decodeIncidentRecord": "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.add":                  "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.decodeInbox":          "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.decodeNodes":          "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.decodeOldInbox":       "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.decodePeers":          "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.decodePolicy":         "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.decodeTargets":        "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.decodeResponseHead":   "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.decodeSnapshot":       "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.decodeSupervisors":    "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.lastReport":           "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.mapUpdate":            "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.trimmedIn":            "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.trimmedOf":            "internal/supervisor/store FuzzStoreValues",
	"internal/supervisor/store.strictJSON":           "internal/supervisor/store FuzzDecodeRecord",
	"internal/supervisor/web.openUsed":               "internal/supervisor/web FuzzUsedFile",
	"internal/supervisor/web.body":                   "none: two texts of a login, bounded to 64 KiB; pki.OpenWeb reads their content",
	"internal/pki.claims":                            "internal/pki FuzzOpenWeb",
	"pkg/response.Check":                             "pkg/response FuzzUnmarshal",
	"pkg/response.UnmarshalAudit":                    "pkg/response FuzzUnmarshal",
	"pkg/response/policy.Definition":                 "none: it reads a constant of its own file",
	"pkg/response/policy.Parse":                      "pkg/response/policy FuzzParse",
	"pkg/response/policy.ParseWhile":                 "pkg/response/policy FuzzParse",
	"pkg/response/policy.parse":                      "pkg/response/policy FuzzParse",
	"pkg/response/policy.tree":                       "pkg/response/policy FuzzParse",
	"pkg/selftest.Restore":                           "pkg/selftest FuzzRestore",
	"pkg/selftest.restore":                           "pkg/selftest FuzzRestore",
	"pkg/sensor.DecodeReadings":                      "pkg/sensor FuzzDecodeReadings",
	"pkg/sensor/source.UnmarshalJSON":                "none: the operator's own file",
	"pkg/servicenet.EncodeReport":                    "none: the bytes that it has just written",
	"pkg/servicenet.EncodeReports":                   "none: the bytes that it has just written",
	"pkg/servicenet.ParseReport":                     "pkg/servicenet FuzzCanonical",
	"pkg/servicenet.MayWait":                         "pkg/servicenet FuzzPacket",
	"pkg/servicenet.Open":                            "pkg/servicenet FuzzOpen",
	"pkg/servicenet.Unwrap":                          "pkg/servicenet FuzzUnwrap",
	"pkg/servicenet.leaveOutNames":                   "pkg/servicenet FuzzMessage",
	"pkg/servicenet.open":                            "pkg/servicenet FuzzOpen",
	"pkg/servicenet.parseField":                      "pkg/servicenet FuzzPacket",
	"pkg/servicenet.parseInner":                      "pkg/servicenet FuzzUnwrap",
	"pkg/servicenet.parsePacket":                     "pkg/servicenet FuzzPacket",
	"pkg/servicenet/bulk.Open":                       "pkg/servicenet/bulk FuzzChunk",
	"pkg/servicenet/bulk.ParseHeader":                "pkg/servicenet/bulk FuzzChunk",
	"pkg/servicenet/bulk.ParseTransfer":              "pkg/servicenet/bulk FuzzChunk",
	"pkg/servicenet/bulk.parse":                      "pkg/servicenet/bulk FuzzChunk",
	"pkg/servicenet/gossip.decodeMeta":               "pkg/servicenet/gossip FuzzDecodeMeta",
	"pkg/servicenet/gossip.parseLine":                "none: a log line of memberlist in this process",
	"pkg/servicenet/spool.decodeEntry":               "pkg/servicenet/spool FuzzScan",
	"pkg/servicenet/spool.decodeHeader":              "pkg/servicenet/spool FuzzScan",
	"pkg/servicenet/spool.decodeHeaderCopy":          "pkg/servicenet/spool FuzzScan",
	"pkg/torus.Decode":                               "pkg/torus FuzzDecode",
	"pkg/torus.DecodeHop":                            "pkg/torus FuzzDecodeHop",
	"pkg/torus.DecodeHopSnapshot":                    "pkg/torus FuzzDecodeHopSnapshot",
	"pkg/torus.DecodeRestarting":                     "pkg/torus FuzzDecodeRestarting",
	"pkg/torus.Open":                                 "pkg/torus FuzzDecode",
	"pkg/torus/chanmask.Decode":                      "pkg/torus/chanmask FuzzDecode",
	"pkg/torus/diagnosis.Unwrap":                     "pkg/torus/diagnosis FuzzUnwrap",
	"pkg/torus/diagnosis.readHead":                   "pkg/torus/diagnosis FuzzUnwrap",
	"pkg/torus/express.decode":                       "pkg/torus/express FuzzDecode",
	"pkg/torus/express.decodeData":                   "pkg/torus/express FuzzData",
	"pkg/torus/express.decodeMessage":                "pkg/torus/express FuzzDecode",
	"pkg/torus/express.decodeSet":                    "pkg/torus/express FuzzDecodeSet",
	"pkg/torus/express.restore":                      "pkg/torus/express FuzzSeenRestore",
	"pkg/torus/mapping.decode":                       "pkg/torus/mapping FuzzHop",
	"pkg/torus/procedure.Decode":                     "pkg/torus/procedure FuzzDecode",
	"pkg/torus/procedure.decodeMessage":              "pkg/torus/procedure FuzzDecode",
	"pkg/torus/routing.DecodeFlow":                   "pkg/torus/routing FuzzDecodeFlow",
	"pkg/torus/routing.decodePiece":                  "pkg/torus/routing FuzzReorder",
	"pkg/watchdog.DecodeWindow":                      "pkg/watchdog FuzzDecodeWindow",
}

// fuzzedFaults returns the errors in a list of decoders and their targets.
func fuzzedFaults(decoders map[string]bool, list map[string]string, targets map[string]bool) (out []string) {
	for _, d := range slices.Sorted(maps.Keys(decoders)) {
		if list[d] == "" {
			out = append(out, d+" makes values of bytes: give it a fuzz target, and name it here")
		}
	}
	for _, d := range slices.Sorted(maps.Keys(list)) {
		switch by := list[d]; {
		case !decoders[d]:
			out = append(out, d+" is no decoder any more: take it from the list")
		case !strings.HasPrefix(by, "none: ") && !targets[by]:
			out = append(out, d+": there is no target "+by)
		}
	}
	return out
}

// fuzzTargets returns all fuzz targets, as "folder Name".
func fuzzTargets(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, f := range sources(t) {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && strings.HasPrefix(fn.Name.Name, "Fuzz") {
				out[f.dir+" "+fn.Name.Name] = true
			}
		}
	}
	return out
}

// TestEveryDecoderIsFuzzed: every decoder of bytes has a fuzz target, or a reason why it never sees dangerous bytes.
func TestEveryDecoderIsFuzzed(t *testing.T) {
	found := decoders(t)
	if len(found) < 80 {
		t.Fatalf("%d decoders: the search is wrong", len(found))
	}
	for _, f := range fuzzedFaults(found, fuzzed, fuzzTargets(t)) {
		t.Error(f)
	}
}

func TestFuzzRuleRefuses(t *testing.T) {
	targets := map[string]bool{"pkg/x FuzzDecode": true}
	for _, tc := range []struct {
		found map[string]bool
		list  map[string]string
		want  int
	}{
		{map[string]bool{"pkg/x.Decode": true}, map[string]string{"pkg/x.Decode": "pkg/x FuzzDecode"}, 0},
		{map[string]bool{"pkg/x.Decode": true}, map[string]string{"pkg/x.Decode": "none: its own word"}, 0},
		{map[string]bool{"pkg/x.Decode": true}, nil, 1},
		{map[string]bool{"pkg/x.Decode": true}, map[string]string{"pkg/x.Decode": "pkg/x FuzzOther"}, 1},
		{nil, map[string]string{"pkg/x.Decode": "pkg/x FuzzDecode"}, 1},
	} {
		if got := fuzzedFaults(tc.found, tc.list, targets); len(got) != tc.want {
			t.Errorf("%v with %v: %q, want %d faults", tc.found, tc.list, got, tc.want)
		}
	}
}
