// A large map of small objects, built and walked: heap.js [ROUNDS]
const rounds = Number(process.argv[2] ?? 1);
let sum = 0;
for (let round = 0; round < rounds; round++) {
  const map = new Map();
  for (let i = 0; i < 1200000; i++) map.set('k' + i, { a: i, b: [i, i + 1] });
  for (const [, value] of map) sum += value.b[1];
}
console.log(sum);
