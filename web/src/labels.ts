import type { State } from './model'

// Names beside the signs of the drawing: where they go is a function of the places of the signs, without elements.

/** Label is a name for the sign at a place, in pixels. */
export interface Label {
  text: string
  state: State
  x: number
  y: number
  /** off is the radius of the sign, which the name does not cover. */
  off: number
  /** must: the name is drawn even if it does not fit beside the sign. */
  must: boolean
}

/** Placed is a label with the left end of its middle line. A line leads from the sign to a name that is not beside it. */
export interface Placed extends Label { left: number; middle: number; width: number; line: boolean }

/** most is the largest number of names in the drawing. The list of nodes has the others. */
export const most = 60

const high = 20 // pixels of a line of text

/**
 * placed gives each label a free place beside its sign, in the order of the list. A name without a free place is left out, or, if it must be drawn, is moved
 * away from its sign until there is one.
 */
export function placed(labels: Label[], width: number, height: number, measure: (text: string) => number): Placed[] {
  const out: Placed[] = []
  const free = (left: number, middle: number, w: number) => left >= 2 && left + w <= width - 2 && middle >= high / 2 && middle <= height - high / 2 &&
    !out.some((o) => left < o.left + o.width + 4 && o.left < left + w + 4 && Math.abs(middle - o.middle) < high)
  for (const l of labels) {
    if (out.length === most) break
    if (l.x < 0 || l.y < 0 || l.x > width || l.y > height) continue // the sign is not in the window
    const w = measure(l.text)
    for (let ring = 0; ring < (l.must ? 8 : 1); ring++) {
      const far = l.off + 4 + ring * high
      const at = [[l.x + far, l.y], [l.x - far - w, l.y], [l.x - w / 2, l.y - far - high / 2], [l.x - w / 2, l.y + far + high / 2],
        [l.x + far, l.y - far], [l.x + far, l.y + far], [l.x - far - w, l.y - far], [l.x - far - w, l.y + far]]
        .find(([left, middle]) => free(left, middle, w))
      if (!at) continue
      out.push({ ...l, left: at[0], middle: at[1], width: w, line: ring > 0 })
      break
    }
  }
  return out
}
