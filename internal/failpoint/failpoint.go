// Package failpoint marks the steps of the two halves, of the daemon and of the executor process at which tests inject
// faults: every send, receive, commit, restart step and step of an act.
//
// A released program has no failpoints: without the build tag lofamo_failpoint every function here is empty and inlined
// away (off.go, and the tests that verify it). With the tag, a point follows an Order. Orders come through the
// injection socket of a half or of the daemon, or from a file in the state directory that is read once at a start. Both
// require that the configuration allows injection.
package failpoint

import "fmt"

// Point is a step at which a fault can be injected.
type Point string

// Points of the halves.
const (
	LinkSend    Point = "link-send"    // a frame leaves through a torus link
	LinkReceive Point = "link-receive" // a packet has arrived through a torus link
	HostSend    Point = "host-send"    // a datagram leaves through the service network
	HostReceive Point = "host-receive" // a datagram has arrived through the service network
	MailSend    Point = "mail-send"    // a message leaves for the other half
	MailReceive Point = "mail-receive" // a message from the other half has arrived

	CommitBefore  Point = "commit-before"  // a cell of the copy is about to be stored
	CommitBetween Point = "commit-between" // its first half is stored, its second is not
	CommitAfter   Point = "commit-after"   // it is stored, and nothing depends on it yet
	SpoolKeep     Point = "spool-keep"     // reports go to the spool on disk

	StartOpened   Point = "start-opened"   // a starting half has its register file and its mailbox
	StartRestored Point = "start-restored" // and the state from its copy
	StartServing  Point = "start-serving"  // and has taken its first step
)

// Points of the daemon, in the order of a restart.
const (
	DaemonDetected  Point = "daemon-detected"  // a half is about to be ended
	DaemonGone      Point = "daemon-gone"      // it is gone for certain
	DaemonAnnounced Point = "daemon-announced" // the neighbours have been notified
	DaemonStarted   Point = "daemon-started"   // a new one was started
)

// Points of the replacement of a small file: an executor process' ledger, and the files of halves and daemons, in
// addition to their own points.
const (
	FileWritten Point = "file-written" // the new file is on disk beside the old one
	FileRenamed Point = "file-renamed" // it has the old one's name, and the directory is not synced
)

// FilePoints lists the points of a file replacement.
func FilePoints() []Point { return []Point{FileWritten, FileRenamed} }

// Points of an executor process, in the order of an attempt.
const (
	ExecutorAdmitted Point = "executor-admitted" // the attempt is admitted, and not yet written
	ExecutorIntended Point = "executor-intended" // the intent is durable, and nothing is done
	ExecutorFenced   Point = "executor-fenced"   // the last token check is over, and nothing is done
	ExecutorActed    Point = "executor-acted"    // it is done, and its end is not durable
	ExecutorEnded    Point = "executor-ended"    // its end is durable, and the caller has no answer
)

// ExecutorPoints lists the points of an executor process.
func ExecutorPoints() []Point {
	return []Point{ExecutorAdmitted, ExecutorIntended, ExecutorFenced, ExecutorActed, ExecutorEnded}
}

// Points of an executor that calls servers: webhooks, Alertmanagers and an executor process, in the order of an
// attempt.
const (
	CallAdmitted Point = "call-admitted" // the attempt is admitted, and no request was sent
	CallLooked   Point = "call-looked"   // the receiver has reported the outcome of an earlier attempt
	CallSending  Point = "call-sending"  // the request is about to be sent
	CallSent     Point = "call-sent"     // it was sent, and the answer is not known
	CallEnded    Point = "call-ended"    // the outcome is known, only here
)

// CallPoints lists the points of an executor that calls.
func CallPoints() []Point {
	return []Point{CallAdmitted, CallLooked, CallSending, CallSent, CallEnded}
}

// Points of an act that a response requests from a node, in its recovery daemon, in the order of the act. Only an order
// passes them, so they are not among Points.
const (
	ActAdmitted Point = "act-admitted" // the attempt is stored as in progress, and nothing is done
	ActNoted    Point = "act-noted"    // the note for the next attempt is stored, and nothing is done
	ActMade     Point = "act-made"     // it is done, and its outcome is not stored
	ActKept     Point = "act-kept"     // its outcome is stored
)

// Points of the supervisor that requests an act from a node.
const (
	NodeOrder   Point = "node-order"   // an order to act, or a change of a mask, is about to be sent or committed
	NodeOrdered Point = "node-ordered" // it was sent or committed
	NodeHeard   Point = "node-heard"   // the agent's answer has arrived and is not processed
)

// Points of the Kubernetes executor.
const (
	KubernetesRead    Point = "kubernetes-read"    // the node is about to be read
	KubernetesWrite   Point = "kubernetes-write"   // a write, or an event, is about to be sent
	KubernetesSend    Point = "kubernetes-send"    // the leadership check has just succeeded, and the request leaves
	KubernetesWritten Point = "kubernetes-written" // it was sent, and the answer is not processed
	KubernetesEvict   Point = "kubernetes-evict"   // the eviction of one pod is about to be sent
	KubernetesEvicted Point = "kubernetes-evicted" // it was sent, and the answer is not processed
)

// KubernetesPoints lists the points of the Kubernetes executor, including ExecutorFenced.
func KubernetesPoints() []Point {
	return []Point{KubernetesRead, KubernetesWrite, KubernetesEvict, ExecutorFenced, KubernetesSend, KubernetesWritten, KubernetesEvicted}
}

// Points of the leader's responder, in the order of an attempt.
const (
	ResponderDecided   Point = "responder-decided"   // records are about to be committed
	ResponderCommitted Point = "responder-committed" // they are committed, and nothing has begun
	ResponderStarting  Point = "responder-starting"  // an executor is about to be called
	ResponderEnded     Point = "responder-ended"     // it has answered, and the result is not passed on
	ResponderResult    Point = "responder-result"    // its result is about to be committed
)

// ResponderPoints lists the points of the leader's responder.
func ResponderPoints() []Point {
	return []Point{ResponderDecided, ResponderCommitted, ResponderStarting, ResponderEnded, ResponderResult}
}

// Action is the effect of a point.
type Action uint8

// Actions. Hit carries out those after Double; its caller carries out Drop, Corrupt and Double.
const (
	Pass    Action = iota // nothing
	Drop                  // the step is skipped
	Corrupt               // with a bit flipped
	Double                // twice
	Delay                 // later
	Hang                  // never: the caller blocks for ever, with the locks that it holds
	Spin                  // never: the caller loops for ever
	Crash                 // the process is killed (signal 9)
	Panic                 // the process panics
	Exit                  // the process exits with a failure
	Stop                  // the process is stopped (signal 19) until it is continued (signal 18)
	Hold                  // the caller waits for a Gate; the process continues
)

var actionNames = [...]string{Pass: "pass", Drop: "drop", Corrupt: "corrupt", Double: "double", Delay: "delay", Hang: "hang",
	Spin: "spin", Crash: "crash", Panic: "panic", Exit: "exit", Stop: "stop", Hold: "hold"}

// String returns the action's name.
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return fmt.Sprintf("Action(%d)", uint8(a))
}

// ParseAction parses the name of an action other than pass.
func ParseAction(s string) (Action, error) {
	for a, name := range actionNames {
		if name == s && Action(a) != Pass {
			return Action(a), nil
		}
	}
	return Pass, fmt.Errorf("action: given %q: want drop, corrupt, double, delay, hang, spin, crash, panic, exit, stop or hold", s)
}

// Order arms a point, as JSON: {"point":"link-send","action":"delay","delay_ms":20,"skip":3,"times":2}.
type Order struct {
	Point   Point  `json:"point"`
	Action  string `json:"action"`
	DelayMS int    `json:"delay_ms,omitempty"` // for delay
	Skip    int    `json:"skip,omitempty"`     // number of hits that pass first
	Times   int    `json:"times,omitempty"`    // number of times; 0: once
	Gate    string `json:"gate,omitempty"`     // for hold: the path of the Gate's socket
}

// Points lists the points of the halves and of the daemon.
func Points() (halves, daemon []Point) {
	return []Point{
			LinkSend, LinkReceive, HostSend, HostReceive, MailSend, MailReceive,
			CommitBefore, CommitBetween, CommitAfter, SpoolKeep, StartOpened, StartRestored, StartServing,
		}, []Point{
			DaemonDetected, DaemonGone, DaemonAnnounced, DaemonStarted,
		}
}

// ActPoints lists the points of acts.
func ActPoints() []Point {
	return []Point{ActAdmitted, ActNoted, ActMade, ActKept, NodeOrder, NodeOrdered, NodeHeard}
}

// File returns the name of the file in a state directory that arms the points of a process at its start: of a half
// ("host", "dnp"), of the daemon ("run") or of an executor process ("executor").
func File(who string) string { return "failpoint." + who }
