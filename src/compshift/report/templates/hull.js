"use strict";
// The affine hull of the seen groups in exact integer arithmetic, as compshift.AffineHull computes it.
// Both classes are built from the number of values of each attribute. Codes are arrays of integers.

const MAX_COUNTED = 50000; // maximum number of groups that are counted one by one; more are estimated from a sample
const SAMPLE = 20000; // size of the random sample

// The hull for two attributes. Seen groups are edges of a bipartite graph of values; a group is inside the hull if its
// two values are in the same connected component.
class ValueGraph {
  constructor(sizes) {
    this.sizes = sizes;
    this.parent = Array.from({ length: sizes[0] + sizes[1] }, (_, value) => value);
    this.rank = 0;
  }

  copy() {
    return Object.assign(new ValueGraph([0, 0]), { sizes: this.sizes, parent: this.parent.slice(), rank: this.rank });
  }

  get fullRank() {
    return this.sizes[0] + this.sizes[1] - 1;
  }

  root(value) {
    while (this.parent[value] !== value) {
      this.parent[value] = this.parent[this.parent[value]];
      value = this.parent[value];
    }
    return value;
  }

  contains([left, right]) {
    return this.root(left) === this.root(this.sizes[0] + right);
  }

  // Add a group; return whether it was outside the hull.
  add([left, right]) {
    const [one, other] = [this.root(left), this.root(this.sizes[0] + right)];
    if (one === other) return false;
    this.parent[one] = other;
    this.rank += 1;
    return true;
  }

  // Return a group outside the hull that differs in one value from the seen group (left, right); null if there is none.
  outside([left, right]) {
    const own = this.root(left);
    for (let value = 0; value < this.parent.length; value++) {
      if (this.root(value) !== own) {
        return value < this.sizes[0] ? [value, right] : [left, value - this.sizes[0]];
      }
    }
    return null;
  }

  coverage() {
    const counts = new Map();
    for (let value = 0; value < this.parent.length; value++) {
      const pair = counts.get(this.root(value)) || [0, 0];
      pair[value < this.sizes[0] ? 0 : 1] += 1;
      counts.set(this.root(value), pair);
    }
    let inside = 0;
    for (const [left, right] of counts.values()) inside += left * right;
    return { inside, total: this.sizes[0] * this.sizes[1], exact: true };
  }
}

// The hull for any number of attributes: a basis of the integer vectors orthogonal to the one-hot codes of all seen
// groups. A group is inside the hull if its one-hot code is orthogonal to every basis vector. Adding a group from
// outside removes one basis vector, so the rank is the code width minus the number of basis vectors.
class OrthogonalSpace {
  constructor(sizes) {
    this.sizes = sizes;
    this.offsets = sizes.map((_, attribute) => sizes.slice(0, attribute).reduce((sum, size) => sum + size, 0));
    this.width = sizes.reduce((sum, size) => sum + size, 0);
    this.vectors = Array.from({ length: this.width }, (_, value) => new Map([[value, 1n]]));
  }

  copy() {
    return Object.assign(new OrthogonalSpace([]), { ...this, vectors: this.vectors.slice() });
  }

  get rank() {
    return this.width - this.vectors.length;
  }

  get fullRank() {
    return this.width - this.sizes.length + 1;
  }

  product(vector, code) {
    let sum = 0n;
    for (let attribute = 0; attribute < code.length; attribute++) {
      sum += vector.get(this.offsets[attribute] + code[attribute]) || 0n;
    }
    return sum;
  }

  contains(code) {
    return this.vectors.every((vector) => this.product(vector, code) === 0n);
  }

  add(code) {
    const products = this.vectors.map((vector) => this.product(vector, code));
    let pivot = -1;
    products.forEach((product, number) => {
      if (product !== 0n && (pivot < 0 || this.vectors[number].size < this.vectors[pivot].size)) pivot = number;
    });
    if (pivot < 0) return false;
    const [taken, own] = [this.vectors[pivot], products[pivot]];
    this.vectors = this.vectors
      .map((vector, number) => (products[number] ? combined(vector, own, taken, -products[number]) : vector))
      .filter((_, number) => number !== pivot);
    return true;
  }

  outside(base) {
    for (const vector of this.vectors) {
      for (let attribute = 0; attribute < base.length; attribute++) {
        for (let value = 0; value < this.sizes[attribute]; value++) {
          const code = base.slice();
          code[attribute] = value;
          if (this.product(vector, code) !== 0n) return code;
        }
      }
    }
    return null;
  }

  coverage() {
    const total = this.sizes.reduce((product, size) => product * size, 1);
    if (this.rank === this.fullRank) return { inside: total, total, exact: true };
    const exact = total <= MAX_COUNTED;
    const draws = exact ? total : SAMPLE;
    let [inside, state] = [0, 1];
    for (let number = 0; number < draws; number++) {
      let rest = number;
      const code = this.sizes.map((size) => {
        if (exact) {
          const value = rest % size;
          rest = Math.floor(rest / size);
          return value;
        }
        state = (state * 48271) % 2147483647;
        return Math.floor((state / 2147483647) * size);
      });
      inside += this.contains(code) ? 1 : 0;
    }
    return { inside: exact ? inside : Math.round((inside / draws) * total), total, exact };
  }
}

// Return factor · vector + otherFactor · other, divided by the greatest common divisor of its entries.
function combined(vector, factor, other, otherFactor) {
  const sum = new Map();
  for (const [value, entry] of vector) sum.set(value, factor * entry);
  for (const [value, entry] of other) {
    const entries = (sum.get(value) || 0n) + otherFactor * entry;
    if (entries === 0n) sum.delete(value);
    else sum.set(value, entries);
  }
  let divisor = 0n;
  for (const entry of sum.values()) divisor = greatestDivisor(divisor, entry);
  if (divisor > 1n) for (const [value, entry] of sum) sum.set(value, entry / divisor);
  return sum;
}

function greatestDivisor(one, other) {
  [one, other] = [one < 0n ? -one : one, other < 0n ? -other : other];
  while (other) [one, other] = [other, one % other];
  return one;
}

// For two attributes, return a group as a combination of other groups: signs and codes along a shortest path between
// the group's two values, in the graph whose edges are the other groups. Return null if there is no path.
function pathWitness([left, right], codes) {
  const edges = [new Map(), new Map()]; // groups by their left value, and by their right value
  for (const code of codes) {
    edges.forEach((side, which) => {
      if (!side.has(code[which])) side.set(code[which], []);
      side.get(code[which]).push(code);
    });
  }
  const before = [new Map([[left, null]]), new Map()];
  for (let [layer, side] = [[left], 0]; layer.length && !before[1].has(right); side = 1 - side) {
    const next = [];
    for (const value of layer) {
      for (const code of edges[side].get(value) || []) {
        const reached = code[1 - side];
        if (before[1 - side].has(reached)) continue;
        before[1 - side].set(reached, code);
        next.push(reached);
      }
    }
    layer = next;
  }
  if (!before[1].has(right)) return null;
  const path = [];
  for (let [code, side] = [before[1].get(right), 1]; code; side = 1 - side) {
    path.unshift(code);
    code = before[1 - side].get(code[1 - side]);
  }
  return path.map((code, number) => [number % 2 ? -1 : 1, code]);
}

function hullOf(sizes, codes) {
  const hull = sizes.length === 2 ? new ValueGraph(sizes) : new OrthogonalSpace(sizes);
  codes.forEach((code) => hull.add(code));
  return hull;
}

// Return the fewest groups that complete the hull, taking groups of ``preferred`` first. Each raises the rank by 1.
function completion(hull, preferred, base) {
  const whole = hull.copy();
  const chosen = preferred.filter((code) => whole.add(code));
  while (whole.rank < whole.fullRank) {
    chosen.push(whole.outside(base));
    whole.add(chosen[chosen.length - 1]);
  }
  return chosen;
}
