// The words that differ between a torus of cables and an ordinary cluster. lofamoctl has the same table: internal/ctl/command/words.go.

/** Words are the phrases for the faults of one kind of cluster, by fault. */
export interface Words {
  readonly nodeFailed: string
  readonly nodeSick: string
  readonly hostFailed: string
  readonly dnpFailed: string
  readonly dnpSick: string
  readonly linkFailed: string
  readonly linkSick: string
  readonly serviceNetwork: string
  readonly partition: string
  readonly plane: string
  readonly direction: string // how a direction of the torus is called; empty: the reader has none
  readonly geometry: string // how a group of neighbouring places is called; empty: by its places
  readonly spare: string // a node without a place
}

const torus: Words = {
  nodeFailed: 'both halves of the node are dead: it is off, has crashed, or has lost all its cables',
  nodeSick: "several links of the node are bad: suspect the node's ports before the cables",
  hostFailed: 'the host is dead or hangs; its network processor (DNP) still works',
  dnpFailed: 'the network processor (DNP) is dead or hangs; the host still works, and all links of the node are silent',
  dnpSick: 'the network processor (DNP) reports errors',
  linkFailed: 'the cable or one of its two ends carries nothing; both nodes live',
  linkSick: 'the cable or one of its two ends loses or damages frames',
  serviceNetwork: 'the node fails on the service network; the torus still reaches it',
  partition: 'no living path leads to this part of the torus: its nodes may be healthy',
  plane: 'all links between two planes have failed: look for a shared cause, such as a cable tray',
  direction: 'direction',
  geometry: '',
  spare: 'spare',
}

const ordinary: Words = {
  nodeFailed: 'both agents of the node are dead: it is off, has crashed, or has lost its network',
  nodeSick: "several links of the node are bad: suspect the node's network interface, its cable and its switch port",
  hostFailed: 'the host agent is dead or hangs; the network agent still works',
  dnpFailed: 'the network agent is dead or hangs; the host agent still works, and all links of the node are silent',
  dnpSick: 'the network agent reports errors',
  linkFailed: 'nothing passes between the two nodes; both live',
  linkSick: 'the path between the two nodes loses or damages frames',
  serviceNetwork: 'the node does not reach the supervisors; its neighbours still reach it',
  partition: 'no living path leads to these nodes: they may be healthy',
  plane: 'many links have failed together: look for a shared cause, such as a switch',
  direction: '',
  geometry: 'nodes together',
  spare: 'takes no part',
}

/** wordsOf returns the words of a kind of cluster. */
export const wordsOf = (isOrdinary: boolean): Words => isOrdinary ? ordinary : torus
