// An end that is told to the person in a sentence; `again` is a request that is worth asking again.
export class Told extends Error {
  constructor(message, { again } = {}) {
    super(message);
    this.again = again;
  }

  static of(error) {
    const text = String(error?.message ?? error);
    if (error?.code === 4001 || /reject|declin|denied|cancel/i.test(text)) {
      return new Told("You declined in your wallet. Nothing was charged. Press the button to try again.");
    }
    if (error?.code === -32002) return new Told("Your wallet has a request open. Nothing was charged. Open the wallet and finish it there, then try again.");
    return new Told(`Your wallet says: ${text.slice(0, 200)}. Nothing was charged. Try again, or use another wallet.`);
  }
}

export const sleep = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });
